//! The endpoints: the path and the handler of each, and what the OpenAPI document says of it.

use crate::app::App;
use crate::generation::GenerationRequest;
use crate::{
    chat, completions, conversation_routes, embeddings, infill, messages, metrics, native, ollama,
    openapi, operation, responses, sampling, stored_responses, tokenize,
};
use axum::handler::Handler;
use axum::routing::{self, MethodRouter};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// All endpoints.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    let conversations = "/v1/kvark/conversations";
    let conversation = "/v1/kvark/conversations/{id}";
    vec![
        Endpoint::post("/v1/chat/completions", "chat", chat::create)
            .does("Answer a chat, as OpenAI's API")
            .also(&["/chat/completions"])
            .takes::<chat::ChatRequest>()
            .takes::<chat::TurnRequest>()
            .generates(chat::IGNORED),
        Endpoint::post("/v1/completions", "complete", completions::create)
            .does("Continue a text, as OpenAI's API")
            .takes::<completions::CompletionRequest>()
            .generates(chat::IGNORED),
        Endpoint::post("/completion", "completeNative", native::create)
            .does("Continue a text, as llama.cpp's server")
            .also(&["/completions"])
            .takes::<native::NativeRequest>()
            .takes::<native::NativeOptions>()
            .generates(native::IGNORED),
        Endpoint::post("/infill", "infill", infill::create)
            .does("Fill in the text between two others, as llama.cpp's server")
            .takes::<infill::InfillParameters>()
            .takes::<native::NativeOptions>()
            .generates(native::IGNORED),
        Endpoint::post("/v1/responses", "respond", responses::create)
            .does("Answer a chat, as OpenAI's newer API")
            .also(&["/responses"])
            .takes::<responses::ResponseRequest>()
            .takes::<chat::TurnRequest>()
            .generates(responses::IGNORED),
        Endpoint::post(
            "/v1/responses/input_tokens",
            "countInputTokens",
            responses::input_tokens,
        )
        .does("Count the tokens of a prompt, as OpenAI's newer API")
        .takes::<responses::CountRequest>()
        .ignores(responses::COUNT_IGNORED),
        Endpoint::get("/v1/responses/{id}", "response", stored_responses::get)
            .does("A stored response"),
        Endpoint::delete(
            "/v1/responses/{id}",
            "deleteResponse",
            stored_responses::delete,
        )
        .does("Delete a stored response; those that went on from it stay"),
        Endpoint::get(
            "/v1/responses/{id}/input_items",
            "inputItems",
            stored_responses::input_items,
        )
        .does("The items before the output of a stored response")
        .queried("after", "string")
        .queried("limit", "integer")
        .queried("order", "string"),
        Endpoint::post(messages::PATH, "message", messages::create)
            .does("Answer a chat, as Anthropic's API")
            .takes::<messages::MessageRequest>()
            .takes::<chat::TurnRequest>()
            .generates(messages::IGNORED),
        Endpoint::post(
            "/v1/messages/count_tokens",
            "countTokens",
            messages::count_tokens,
        )
        .does("Count the tokens of a prompt, as Anthropic's API")
        .takes::<messages::CountRequest>()
        .ignores(messages::COUNT_IGNORED),
        Endpoint::post("/v1/embeddings", "embed", embeddings::create)
            .does("Turn texts into vectors")
            .also(&["/embeddings"])
            .takes::<embeddings::EmbeddingRequest>()
            .ignores(&["user"]),
        Endpoint::post("/api/chat", "ollamaChat", ollama::chat)
            .does("Answer a chat, as Ollama's API")
            .takes::<ollama::OllamaChat>()
            .takes::<ollama::OllamaRequest>()
            .ignores(ollama::IGNORED),
        Endpoint::post("/api/generate", "ollamaGenerate", ollama::generate)
            .does("Answer a message or continue a text, as Ollama's API")
            .takes::<ollama::OllamaGenerate>()
            .takes::<ollama::OllamaRequest>()
            .ignores(ollama::IGNORED),
        Endpoint::post("/api/embed", "ollamaEmbed", ollama::embed)
            .does("Turn texts into vectors, as Ollama's API")
            .takes::<ollama::OllamaEmbed>()
            .ignores(ollama::EMBED_IGNORED),
        Endpoint::post("/api/embeddings", "ollamaEmbeddings", ollama::embeddings)
            .does("Turn a text into a vector, as Ollama's older API")
            .takes::<ollama::OllamaEmbeddings>()
            .ignores(ollama::EMBED_IGNORED),
        Endpoint::get("/api/tags", "ollamaTags", ollama::tags).does("The models, as Ollama's API"),
        Endpoint::get("/api/ps", "ollamaPs", ollama::ps).does("The loaded models, as Ollama's API"),
        Endpoint::post("/api/show", "ollamaShow", ollama::show)
            .does("A model, as Ollama's API")
            .takes::<ollama::OllamaShow>()
            .ignores(&["verbose"]),
        Endpoint::post("/api/pull", "ollamaPull", ollama::pull)
            .does("Download a model and serve it, as Ollama's API")
            .takes::<ollama::OllamaPull>()
            .ignores(&["insecure"]),
        Endpoint::get("/api/version", "ollamaVersion", ollama::version)
            .does("The version of Ollama whose API this is"),
        Endpoint::delete("/api/delete", "ollamaDelete", ollama::delete)
            .does("Refused: kvark rm deletes models"),
        Endpoint::post("/api/copy", "ollamaCopy", ollama::copy)
            .does("Refused: kvark serve NAME=MODEL names models"),
        Endpoint::post("/api/create", "ollamaCreate", ollama::create)
            .does("Refused: system messages are part of requests"),
        Endpoint::post("/api/push", "ollamaPush", ollama::push)
            .does("Refused: models are only downloaded"),
        Endpoint::post("/tokenize", "tokenize", tokenize::tokenize)
            .does("Turn text into token ids")
            .takes::<tokenize::TokenizeRequest>(),
        Endpoint::post("/detokenize", "detokenize", tokenize::detokenize)
            .does("Turn token ids into text")
            .takes::<tokenize::DetokenizeRequest>(),
        Endpoint::get("/tokenizer_info", "tokenizerInfo", tokenize::tokenizer_info)
            .does("What the tokenizer of a model is, as vLLM's server")
            .of_a_model(),
        Endpoint::post("/apply-template", "applyTemplate", tokenize::apply_template)
            .does("Show the prompt of a chat")
            .takes::<tokenize::TemplateRequest>(),
        Endpoint::get("/health", "health", operation::health)
            .does("Whether the server answers")
            .also(&["/v1/health"])
            .without_key(),
        Endpoint::get("/openapi.json", "openapi", openapi::serve)
            .does("This document")
            .without_key(),
        Endpoint::get("/metrics", "metrics", metrics::metrics)
            .does("Counters and gauges in Prometheus' format"),
        Endpoint::get("/v1/models", "models", operation::models)
            .does("The models")
            .also(&["/models"]),
        Endpoint::get("/v1/models/{id}", "model", operation::model).does("A model"),
        Endpoint::get("/props", "props", operation::props)
            .does("Properties of a model")
            .of_a_model(),
        Endpoint::get("/slots", "slots", operation::slots)
            .does("What the slots of a model do")
            .of_a_model(),
        Endpoint::get("/v1/kvark/cache", "cache", operation::cache)
            .does("The cells of a model's cache by owner")
            .of_a_model(),
        Endpoint::delete("/v1/kvark/cache", "clearCache", operation::clear_cache)
            .does("Remove retained prefixes from memory")
            .of_a_model(),
        Endpoint::post(
            "/v1/kvark/cache/migrate",
            "migrateCache",
            operation::migrate,
        )
        .does("Store the keys and values of a model's cache otherwise, with all that it holds")
        .takes::<operation::MigrateRequest>(),
        Endpoint::get(
            "/v1/kvark/cache/{seq}",
            "cacheTokens",
            operation::cache_tokens,
        )
        .does("The tokens of a sequence")
        .of_a_model(),
        Endpoint::get("/v1/kvark/events", "events", operation::events)
            .does("The cache as server-sent events")
            .of_a_model(),
        Endpoint::get(conversations, "conversations", conversation_routes::list)
            .does("All conversations"),
        Endpoint::post(
            conversations,
            "createConversation",
            conversation_routes::create,
        )
        .does("Begin a conversation with exact token ids")
        .takes::<conversation_routes::CreateRequest>()
        .ignores(&["metadata"]),
        Endpoint::get(conversation, "conversation", conversation_routes::get)
            .does("A conversation: its turns, tokens and forks"),
        Endpoint::delete(
            conversation,
            "deleteConversation",
            conversation_routes::delete,
        )
        .does("Delete a conversation; forks of it stay"),
        Endpoint::post(
            "/v1/kvark/conversations/{id}/fork",
            "fork",
            conversation_routes::fork,
        )
        .does("Fork a conversation, also while it is generating")
        .takes::<conversation_routes::CutRequest>(),
        Endpoint::post(
            "/v1/kvark/conversations/{id}/rewind",
            "rewind",
            conversation_routes::rewind,
        )
        .does("Cut a conversation")
        .takes::<conversation_routes::CutRequest>(),
        Endpoint::post(
            "/v1/kvark/conversations/{id}/splice",
            "splice",
            conversation_routes::splice,
        )
        .does("Remove turns from the middle of a conversation and put others in their place")
        .takes::<conversation_routes::SpliceRequest>(),
        Endpoint::post(
            "/v1/kvark/conversations/{id}/keep",
            "keep",
            conversation_routes::keep,
        )
        .does("Delete all other conversations of the tree"),
    ]
}

/// A method of a path.
pub(crate) struct Endpoint {
    pub(crate) path: &'static str,
    /// Other paths of it, which other servers have.
    pub(crate) aliases: &'static [&'static str],
    pub(crate) handler: MethodRouter<Arc<App>>,
    /// Whether clients need the server's key.
    pub(crate) needs_key: bool,
    pub(crate) method: &'static str,
    id: &'static str,
    summary: &'static str,
    query: Vec<Value>,
    /// The JSON schema of the body's parameters.
    properties: Map<String, Value>,
    required: Vec<Value>,
}

impl Endpoint {
    fn new(
        path: &'static str,
        id: &'static str,
        method: &'static str,
        handler: MethodRouter<Arc<App>>,
    ) -> Endpoint {
        Endpoint {
            path,
            aliases: &[],
            handler,
            needs_key: true,
            method,
            id,
            summary: "",
            query: vec![],
            properties: Map::new(),
            required: vec![],
        }
    }

    fn get<T: 'static>(
        path: &'static str,
        id: &'static str,
        handler: impl Handler<T, Arc<App>>,
    ) -> Endpoint {
        Endpoint::new(path, id, "get", routing::get(handler))
    }

    fn post<T: 'static>(
        path: &'static str,
        id: &'static str,
        handler: impl Handler<T, Arc<App>>,
    ) -> Endpoint {
        Endpoint::new(path, id, "post", routing::post(handler))
    }

    fn delete<T: 'static>(
        path: &'static str,
        id: &'static str,
        handler: impl Handler<T, Arc<App>>,
    ) -> Endpoint {
        Endpoint::new(path, id, "delete", routing::delete(handler))
    }

    fn does(mut self, summary: &'static str) -> Endpoint {
        self.summary = summary;
        self
    }

    /// Answers at these paths too.
    fn also(mut self, aliases: &'static [&'static str]) -> Endpoint {
        self.aliases = aliases;
        self
    }

    fn without_key(mut self) -> Endpoint {
        self.needs_key = false;
        self
    }

    /// With a query that names the model.
    fn of_a_model(self) -> Endpoint {
        self.queried("model", "string")
    }

    /// With a query of this name and type.
    fn queried(mut self, name: &str, kind: &str) -> Endpoint {
        let schema = json!({ "type": kind });
        let query = json!({ "name": name, "in": "query", "required": false, "schema": schema });
        self.query.push(query);
        self
    }

    /// With the fields of a struct as parameters of the body.
    fn takes<T: JsonSchema>(mut self) -> Endpoint {
        let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<T>();
        if let Some(Value::Object(properties)) = schema.remove("properties") {
            self.properties.extend(properties);
        }
        if let Some(Value::Array(required)) = schema.remove("required") {
            self.required.extend(required);
        }
        self
    }

    /// With parameters that change nothing.
    fn ignores(mut self, names: &[&str]) -> Endpoint {
        let about = || json!({ "description": "Accepted; changes nothing" });
        let names = names.iter().map(|name| ((*name).to_owned(), about()));
        self.properties.extend(names);
        self
    }

    /// With what all generating endpoints take.
    fn generates(self, ignored: &[&str]) -> Endpoint {
        let mut endpoint = self.takes::<GenerationRequest>().ignores(ignored);
        endpoint.properties.extend(sampling::properties());
        endpoint
    }

    /// The operation of the OpenAPI document.
    pub(crate) fn operation(&self, responses: &Value) -> Value {
        let segments = self.path.split('/');
        let names = segments.filter_map(|s| s.strip_prefix('{')?.strip_suffix('}'));
        let in_path = names.map(|name| {
            let kind = if name == "seq" { "integer" } else { "string" };
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": kind } })
        });
        let parameters: Vec<Value> = in_path.chain(self.query.iter().cloned()).collect();
        let mut operation = json!({
            "operationId": self.id,
            "summary": self.summary,
            "parameters": parameters,
            "responses": responses,
        });
        if self.method == "post" {
            let schema = json!({
                "type": "object",
                "properties": self.properties,
                "required": self.required,
                "additionalProperties": false,
            });
            operation["requestBody"] = json!({
                "required": !self.required.is_empty(),
                "content": { "application/json": { "schema": schema } },
            });
        }
        operation
    }
}
