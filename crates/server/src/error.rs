//! `ApiError`: an error response in OpenAI's shape.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kvark::{RuntimeError, RuntimeErrorKind};
use serde_json::{Value, json};

/// A request that was refused or failed.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// OpenAI's error type.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    /// The parameter that is wrong.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            kind,
            message: message.into(),
            param: None,
            code: None,
        }
    }

    /// 400: the request is wrong.
    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: a parameter has a wrong value.
    pub(crate) fn parameter(name: &str, message: impl std::fmt::Display) -> ApiError {
        ApiError {
            param: Some(name.to_owned()),
            code: Some("invalid_value"),
            ..ApiError::invalid(format!("{name}: {message}"))
        }
    }

    /// 400: a parameter that would change the output is not supported.
    pub(crate) fn unsupported(name: &str) -> ApiError {
        ApiError {
            param: Some(name.to_owned()),
            code: Some("unsupported_parameter"),
            ..ApiError::invalid(format!("the parameter {name:?} is not supported"))
        }
    }

    /// 400: nobody knows this parameter.
    pub(crate) fn unknown(name: &str) -> ApiError {
        ApiError {
            param: Some(name.to_owned()),
            code: Some("unknown_parameter"),
            ..ApiError::invalid(format!("unknown parameter {name:?}"))
        }
    }

    /// 404: there is no such thing.
    pub(crate) fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// 409: the request conflicts with what is going on.
    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            code: Some(code),
            ..ApiError::new(StatusCode::CONFLICT, "conflict_error", message)
        }
    }

    /// 401: the key is missing or wrong.
    pub(crate) fn unauthorized() -> ApiError {
        ApiError {
            code: Some("invalid_api_key"),
            ..ApiError::new(
                StatusCode::UNAUTHORIZED,
                "authentication_error",
                "the API key is missing or wrong",
            )
        }
    }

    /// An error with another status.
    pub(crate) fn status(status: StatusCode, message: impl Into<String>) -> ApiError {
        let kind = match status.is_server_error() {
            true => "server_error",
            false => "invalid_request_error",
        };
        ApiError::new(status, kind, message)
    }

    /// The error object.
    pub(crate) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<RuntimeError> for ApiError {
    fn from(error: RuntimeError) -> ApiError {
        let message = error.to_string();
        match error.kind() {
            RuntimeErrorKind::PromptTooLong { .. } => ApiError {
                code: Some("context_length_exceeded"),
                ..ApiError::invalid(message)
            },
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
            | RuntimeErrorKind::NoTokenizer(_) => ApiError::invalid(message),
            RuntimeErrorKind::QueueFull { .. } => ApiError {
                code: Some("queue_full"),
                ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            },
            RuntimeErrorKind::EngineStopped => ApiError {
                code: Some("stopping"),
                ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            },
            RuntimeErrorKind::MemoryShortfall(_) => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            }
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message),
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
