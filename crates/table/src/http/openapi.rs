//! The API document of a node of tables, at `/v1/openapi.json`: what a client may ask for, and what it gets.
//!
//! Each handler says what it takes and gives. Requests for one key have one handler for all methods, as the bytes of a key are no
//! segment of a path, so three functions below stand for them. Not in the document are the paths by which nodes ask each other,
//! and `/<table>/<key>`, which is the same as `/v1/tables/<table>/keys/<key>`.

use super::{bulk, feed, indexes, rows};
use crate::limits::{FEED_WAIT, SCAN_ROWS};
use partage_core::limits::{FILTER_BYTES, NAME_BYTES, TTL_MS};
use partage_wire::json::ErrorBody;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

/// Where the document is.
pub(super) const PATH: &str = "/v1/openapi.json";

#[derive(OpenApi)]
#[openapi(
    info(title = "Partage tables", description = "Rows of replicated tables, at any node of tables."),
    paths(
        read_row,
        put_row,
        delete_row,
        rows::of_table,
        bulk::batch,
        bulk::get,
        bulk::put,
        feed::of_table,
        indexes::list,
        indexes::create,
        indexes::query,
        indexes::drop_index,
        indexes::check
    ),
    components(schemas(ErrorBody))
)]
struct Document;

/// Reads a row: the body of the answer is its value.
#[utoipa::path(
    get, path = "/v1/tables/{table}/keys/{key}", tag = "rows",
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("key" = String, Path, description = "The bytes of the key, percent-encoded; may have slashes"),
        ("consistency" = Option<String>, Query, description = "How fresh: linearizable (the default), bounded, any"),
        ("bound_ms" = Option<u64>, Query, description = "With bounded: how old what is read may be, in milliseconds"),
        ("at_least" = Option<String>, Query, description = "A version: `partage-applied` of an earlier answer"),
    ),
    responses(
        (status = 200, description = "The value; `etag` has the version", content_type = "application/octet-stream"),
        (status = 404, body = ErrorBody, description = "there is no such row"),
    )
)]
#[expect(dead_code, reason = "it is there for the document")]
fn read_row() {}

/// Writes a row: the body is its value.
#[utoipa::path(
    put, path = "/v1/tables/{table}/keys/{key}", tag = "rows",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("key" = String, Path, description = "The bytes of the key, percent-encoded; may have slashes"),
        ("ttl_ms" = Option<u64>, Query, description = "After how many milliseconds the row ends; absent: never"),
        ("if-match" = Option<String>, Header, description = "Only if the row has this version, in quotes; *: if there is one"),
        ("if-none-match" = Option<String>, Header, description = "*: only if there is no row"),
        ("idempotency-key" = Option<String>, Header, description = "The same again within ten minutes changes nothing"),
    ),
    responses(
        (status = 204, description = "Written; `etag` has the version, `partage-existed` whether there was a row"),
        (status = 404, body = ErrorBody, description = "there is no such table"),
        (status = 412, body = ErrorBody, description = "the condition does not hold"),
        (status = 422, body = ErrorBody, description = "another write had this idempotency key"),
        (status = 507, body = ErrorBody, description = "the disk of the leader is full"),
    )
)]
#[expect(dead_code, reason = "it is there for the document")]
fn put_row() {}

/// Deletes a row, which need not be there.
#[utoipa::path(
    delete, path = "/v1/tables/{table}/keys/{key}", tag = "rows",
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("key" = String, Path, description = "The bytes of the key, percent-encoded; may have slashes"),
        ("if-match" = Option<String>, Header, description = "Only if the row has this version, in quotes; *: if there is one"),
        ("idempotency-key" = Option<String>, Header, description = "The same again within ten minutes changes nothing"),
    ),
    responses(
        (status = 204, description = "Deleted; `partage-existed` says whether there was a row"),
        (status = 404, body = ErrorBody, description = "there is no such table"),
        (status = 412, body = ErrorBody, description = "the condition does not hold"),
        (status = 422, body = ErrorBody, description = "another write had this idempotency key"),
        (status = 507, body = ErrorBody, description = "the disk of the leader is full"),
    )
)]
#[expect(dead_code, reason = "it is there for the document")]
fn delete_row() {}

/// The document, with what can be answered to any request, and what parameters can be.
pub(super) fn document() -> Value {
    // Strings and lists of them can always be written.
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    for operations in values(&mut document["paths"]) {
        for operation in values(operations) {
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
            parameters.into_iter().flatten().for_each(parameter);
            responses(operation);
        }
    }
    document
}

fn values(of: &mut Value) -> impl Iterator<Item = &mut Value> {
    of.as_object_mut().into_iter().flat_map(Map::values_mut)
}

/// What may stand in a path, a query or a header.
fn parameter(parameter: &mut Value) {
    let name = parameter["name"].as_str().unwrap_or_default().to_owned();
    let schema = &mut parameter["schema"];
    match name.as_str() {
        "table" | "index" => {
            *schema = json!({ "type": "string", "minLength": 1, "maxLength": NAME_BYTES, "pattern": "^[A-Za-z0-9_:@+-][A-Za-z0-9_.:@+-]*$" });
        }
        "consistency" => *schema = json!({ "type": "string", "enum": ["linearizable", "bounded", "any"] }),
        "limit" => *schema = json!({ "type": "integer", "minimum": 1, "maximum": SCAN_ROWS }),
        "wait_ms" => {
            *schema = json!({ "type": "integer", "minimum": 0, "maximum": FEED_WAIT.as_millis() as u64 })
        }
        "ttl_ms" => *schema = json!({ "type": "integer", "minimum": 0, "maximum": TTL_MS }),
        "bound_ms" | "shard" => *schema = json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }),
        "at_least" => *schema = json!({ "type": "string", "pattern": "^[0-9]{1,19}-[0-9]{1,19}$" }),
        "if-none-match" => *schema = json!({ "type": "string", "enum": ["*"] }),
        "if-match" => *schema = json!({ "type": "string", "pattern": r#"^(\*|"[0-9]{1,19}-[0-9]{1,19}")$"# }),
        "idempotency-key" => *schema = json!({ "type": "string", "minLength": 1, "maxLength": 255 }),
        "filter" => *schema = json!({ "type": "string", "maxLength": FILTER_BYTES }),
        "keys_only" | "dry_run" => {
            *schema = json!({ "type": "string", "enum": ["true", "false", "1", "0", ""] })
        }
        _ => {}
    }
}

/// Every request can be answered so.
fn responses(operation: &mut Value) {
    let content = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/ErrorBody" } } });
    for (status, description) in [
        ("400", "it cannot be understood, or can never be as given"),
        ("403", "a page of another site asks"),
        ("408", "it came too slowly"),
        ("413", "it is too large"),
        (
            "421",
            "the node that was sent the request on does not serve the key, or `Host` names another than this listener",
        ),
        (
            "503",
            "nothing was done: the shard changes hands, too few replicas are in sync, or too much is under way",
        ),
        ("504", "a write may or may not have been done"),
    ] {
        if operation["responses"].get(status).is_none() {
            operation["responses"][status] = json!({ "description": description, "content": content });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::KEYS;
    use std::collections::BTreeSet;

    #[test]
    fn each_route_is_in_the_document_and_nothing_else() {
        let routes = [
            ("get", KEYS),
            ("put", KEYS),
            ("delete", KEYS),
            ("get", rows::TABLE),
            ("post", bulk::BATCH),
            ("post", bulk::GET),
            ("post", bulk::PUT),
            ("get", indexes::INDEXES),
            ("post", indexes::INDEXES),
            ("get", indexes::INDEX),
            ("delete", indexes::INDEX),
            ("post", indexes::CHECK),
            ("get", feed::FEED),
        ];
        let document = document();
        let paths = document["paths"].as_object().unwrap().iter();
        let found: BTreeSet<(&str, &str)> = paths
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().keys().map(|method| (method.as_str(), path.as_str()))
            })
            .collect();
        assert_eq!(found, routes.into());
    }

    #[test]
    fn each_form_that_is_named_is_there_and_each_error_has_one_shape() {
        let document = document();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for named in text.split("\"#/components/schemas/").skip(1) {
            let name = named.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                for (status, response) in operation["responses"].as_object().unwrap() {
                    let shape = &response["content"]["application/json"]["schema"]["$ref"];
                    let is_error = status.starts_with(['4', '5']);
                    assert!(
                        !is_error || shape == "#/components/schemas/ErrorBody",
                        "{method} {path}: {status}"
                    );
                }
            }
        }
    }
}
