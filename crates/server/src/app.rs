//! `App`: the state that all handlers share.

use crate::access::Owner;
use crate::answer_store::AnswerStore;
use crate::conversations::Conversations;
use crate::error::ApiError;
use crate::ollama::{KeepAlive, ModelDetails};
use crate::options::ServerOptions;
use crate::registry::{LoadedModel, ModelRegistry, prefill};
use axum::http::StatusCode;
use kvark::backend::Backend;
use kvark::engine::{BranchCells, MovedTokens, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The state of a server.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) models: ModelRegistry,
    pub(crate) conversations: Conversations,
    /// The tokens of answers, for requests that send them back as messages.
    pub(crate) answers: AnswerStore,
    /// How long models stay loaded that Ollama's clients use.
    pub(crate) keep_alive: KeepAlive,
    /// The facts about models that Ollama's clients are told.
    pub(crate) model_details: ModelDetails,
    pub(crate) started: Instant,
    next_id: AtomicU64,
}

impl App {
    pub(crate) fn new(options: ServerOptions, backend: Box<dyn Backend>) -> App {
        App {
            models: ModelRegistry::new(&options, backend),
            conversations: Conversations::new(&options),
            answers: AnswerStore::default(),
            keep_alive: KeepAlive::default(),
            model_details: ModelDetails::default(),
            started: Instant::now(),
            next_id: AtomicU64::new(1),
            options,
        }
    }

    /// An id for a response, unique in this process.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{:x}{number:08x}", std::process::id())
    }

    /// The model of this name. Loads it without blocking the server.
    pub(crate) async fn model(
        self: &Arc<App>,
        name: Option<String>,
    ) -> Result<Arc<LoadedModel>, ApiError> {
        self.blocking(move |app| app.models.get(name.as_deref()))
            .await
    }

    /// The model of a chat: that of its conversation, or the named one.
    ///
    /// # Errors
    /// 400 if the request names another model than its conversation has.
    pub(crate) async fn chat_model(
        self: &Arc<App>,
        name: Option<String>,
        conversation: Option<&str>,
        owner: &Owner,
    ) -> Result<Arc<LoadedModel>, ApiError> {
        let Some(id) = conversation else {
            return self.model(name).await;
        };
        let own = self.conversations.model_of(id, owner)?;
        if let Some(name) = name.filter(|name| !name.is_empty())
            && self.models.name(Some(&name))? != own
        {
            let wrong = format!("the conversation is one of {own:?}, not of {name:?}");
            return Err(ApiError::parameter("model", wrong));
        }
        self.model(Some(own)).await
    }

    /// Runs work that blocks on a thread of its own.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&app)).await;
        done.unwrap_or_else(|error| {
            let message = format!("a handler failed: {error}");
            Err(ApiError::status(StatusCode::INTERNAL_SERVER_ERROR, message))
        })
    }

    /// Computes tokens in the background, so that a later request finds them. `cells` holds them. The rows of moved tokens are an
    /// approximation.
    pub(crate) fn prefill(
        &self,
        model: &LoadedModel,
        tokens: &[u32],
        cells: BranchCells,
        (approximate, moved): (bool, Option<MovedTokens>),
    ) {
        if tokens.is_empty() {
            return;
        }
        let request = Request {
            priority: -1,
            approximate,
            moved,
            message_ends: model.model.message_ends(tokens),
            ..prefill(tokens.to_vec(), cells)
        };
        // Without a place in the queue, the first completion computes them.
        _ = model.engine().submit(request, Box::new(|_| true));
    }
}
