//! `ApiError`: an error response in OpenAI's shape.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kvark::cache::KvErrorKind;
use kvark::{RuntimeError, RuntimeErrorKind};
use serde_json::{Value, json};

/// A request that was refused or failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The parameter that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    /// An error with this status.
    pub(crate) fn status(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            param: None,
            code: None,
        }
    }

    /// The error with a code.
    pub(crate) fn with_code(self, code: &'static str) -> ApiError {
        ApiError {
            code: Some(code),
            ..self
        }
    }

    /// The error of a parameter.
    pub(crate) fn of_parameter(self, name: &str) -> ApiError {
        ApiError {
            param: Some(name.to_owned()),
            ..self
        }
    }

    /// 400: the request is wrong.
    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::status(StatusCode::BAD_REQUEST, message)
    }

    /// 400: a parameter has a wrong value.
    pub(crate) fn parameter(name: &str, message: impl std::fmt::Display) -> ApiError {
        let error = ApiError::invalid(format!("{name}: {message}"));
        error.of_parameter(name).with_code("invalid_value")
    }

    /// 400: a parameter that would change the output is not supported.
    pub(crate) fn unsupported(name: &str) -> ApiError {
        let error = ApiError::invalid(format!("the parameter {name:?} is not supported"));
        error.of_parameter(name).with_code("unsupported_parameter")
    }

    /// 501: this model or server cannot do it.
    pub(crate) fn not_supported(self) -> ApiError {
        ApiError {
            status: StatusCode::NOT_IMPLEMENTED,
            ..self.with_code("not_supported_error")
        }
    }

    /// 400: nobody knows this parameter.
    pub(crate) fn unknown(name: &str) -> ApiError {
        let error = ApiError::invalid(format!("unknown parameter {name:?}"));
        error.of_parameter(name).with_code("unknown_parameter")
    }

    /// 404: there is no such thing.
    pub(crate) fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::status(StatusCode::NOT_FOUND, message)
    }

    /// 409: the request conflicts with what is going on.
    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::status(StatusCode::CONFLICT, message).with_code(code)
    }

    /// 401: the key is missing or wrong.
    pub(crate) fn unauthorized() -> ApiError {
        let message = "the API key is missing or wrong";
        ApiError::status(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key")
    }

    /// OpenAI's type of the error.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::CONFLICT => "conflict_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The error object.
    pub(crate) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<RuntimeError> for ApiError {
    fn from(error: RuntimeError) -> ApiError {
        let (status, code) = match error.kind() {
            RuntimeErrorKind::PromptTooLong { .. } => {
                (StatusCode::BAD_REQUEST, Some("context_length_exceeded"))
            }
            RuntimeErrorKind::EmptyPrompt
            | RuntimeErrorKind::UnknownToken { .. }
            | RuntimeErrorKind::Text(_)
            | RuntimeErrorKind::Constraint(_)
            | RuntimeErrorKind::InvalidOptions(_)
            | RuntimeErrorKind::TextTooLong { .. }
            | RuntimeErrorKind::EmptyText(_)
            | RuntimeErrorKind::NotADecoder
            | RuntimeErrorKind::Encoder(_)
            | RuntimeErrorKind::NoEmbedding(_)
            | RuntimeErrorKind::NoTokenizer(_) => (StatusCode::BAD_REQUEST, None),
            RuntimeErrorKind::Cache(error)
                if matches!(
                    error.kind(),
                    KvErrorKind::Policy(_) | KvErrorKind::Migration(_)
                ) =>
            {
                (StatusCode::BAD_REQUEST, None)
            }
            RuntimeErrorKind::QueueFull { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, Some("queue_full"))
            }
            RuntimeErrorKind::EngineStopped => (StatusCode::SERVICE_UNAVAILABLE, Some("stopping")),
            RuntimeErrorKind::MemoryShortfall(_) => (StatusCode::SERVICE_UNAVAILABLE, None),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, None),
        };
        ApiError {
            code,
            ..ApiError::status(status, error.to_string())
        }
    }
}

impl ApiError {
    /// A response with the status and the headers of the error, and this body.
    pub(crate) fn response(&self, body: Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer");
                headers.insert(header::WWW_AUTHENTICATE, scheme);
            }
            _ => {}
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.response(self.body())
    }
}
