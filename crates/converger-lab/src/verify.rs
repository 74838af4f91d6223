//! Checks traffic against the API schema: whether Proxmox would accept a request, and whether a
//! response has the documented form.
//!
//! Must not depend on a world: this checks the form of messages and not their meaning.

mod response;

use crate::decode::{self, RequestTarget};
use crate::flavour::Flavour;
use crate::schema::{self, GivenParams, GivenValue};
use crate::wire::{LabRequest, LabResponse, ResponseHeader};

/// Checks method, path and parameters of a request against the schema of a release. Returns the path template of the method.
///
/// # Errors
/// The error of Proxmox: no such method, or the problem with each parameter.
pub fn verify_request(flavour: Flavour, request: &LabRequest) -> Result<&'static str, String> {
    let (path, query) = decode::split_query(&request.path);
    let RequestTarget::Api { rest, .. } = decode::parse_target(path) else { return Err(format!("`{path}` is not an API path")) };
    let segments = decode::split_segments(&rest);
    let found = schema::find_method(&request.method, &segments, flavour);
    let (method, captured) = found.ok_or_else(|| format!("Method '{} /{}' not implemented", request.method, segments.join("/")))?;
    let body = if is_json(request) { decode::parse_json_body(&request.body)? } else { decode::parse_form(&request.body) };
    let params = decode::merge_params(body, decode::parse_form(query.as_bytes()));
    let captured: GivenParams = captured.into_iter().map(|(name, value)| (name, GivenValue::Text(value))).collect();
    let errors = schema::check_params(method, decode::merge_params(params, captured), flavour).err().unwrap_or_default();
    match errors.into_iter().next() {
        Some((name, error)) => Err(format!("{} {}: `{name}`: {}", method.verb, method.template, error.trim_end())),
        None => Ok(&method.template),
    }
}

/// Checks a response against what its method returns in a release. Returns the path template of the method, such as
/// `/nodes/{node}/qemu/{vmid}/config`; `None` if no method produced the response, but the server itself, a proxy or a fault.
///
/// # Errors
/// A deviation from Proxmox: a missing key, a value of another type, or an incomplete error.
pub fn verify_response(flavour: Flavour, request: &LabRequest, answer: &LabResponse) -> Result<Option<&'static str>, String> {
    let json = |(name, value): &ResponseHeader| name == "Content-Type" && value.starts_with("application/json");
    let RequestTarget::Api { rest, format } = decode::parse_target(decode::split_query(&request.path).0) else { return Ok(None) };
    let Some((method, _)) = schema::find_method(&request.method, &decode::split_segments(&rest), flavour) else { return Ok(None) };
    if !answer.headers.iter().any(json) {
        return Ok(None);
    }
    let with_method = |error: String| format!("{} {}: {error}", method.verb, method.template);
    response::check_response(flavour, format, &method.verb, &method.template, answer).map_err(with_method)?;
    Ok(Some(&method.template))
}

/// All methods with a documented result: verb and path template.
pub fn documented_methods() -> impl Iterator<Item = (&'static str, &'static str)> {
    response::documented_methods()
}

fn is_json(request: &LabRequest) -> bool {
    request.find_header("Content-Type").is_some_and(|content| content.starts_with("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_request(method: &str, path: &str, form: &str, wrong: Option<&str>) {
        let request = LabRequest { body: form.as_bytes().to_vec(), ..LabRequest::new(method, path) };
        let found = verify_request(Flavour::V9, &request).err();
        assert_eq!(found.as_deref(), wrong, "{method} {path} {form}");
    }

    fn verify_body(flavour: Flavour, path: &str, status: u16, body: &str) -> Result<Option<&'static str>, String> {
        let headers = vec![("Content-Type".into(), "application/json;charset=UTF-8".into())];
        let answer = LabResponse { status, headers, body: body.as_bytes().to_vec(), ..LabResponse::default() };
        verify_response(flavour, &LabRequest::new("GET", path), &answer)
    }

    #[test]
    fn responses_of_another_form_are_rejected() {
        let current = "/api2/extjs/nodes/a/lxc/100/status/current";
        let valid = r#"{"success":1,"data":{"status":"running","vmid":"100","ha":{},"other":[]}}"#;
        assert_eq!(verify_body(Flavour::V9, current, 200, valid), Ok(Some("/nodes/{node}/lxc/{vmid}/status/current")));
        for (wrong, part) in [
            (valid.replace("status", "state"), "`status` is missing"),
            (valid.replace("\"100\"", "\"x\""), "expected `i`"),
            (valid.replace("\"success\":1,", ""), "no `success`"),
            ("{".to_owned(), "not JSON"),
            ("{}".to_owned(), "no `data`"),
        ] {
            let error = verify_body(Flavour::V9, current, 200, &wrong).expect_err("refused");
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn incomplete_errors_are_rejected() {
        let version = "/api2/extjs/version";
        let refused = |body: &str| verify_body(Flavour::V9, version, 200, body).is_err();
        assert!(!refused(r#"{"success":0,"status":500,"message":"x\n","data":null}"#));
        assert!(!refused(r#"{"success":0,"status":"400","message":"x\n","errors":{"a":"b"},"data":null}"#));
        assert!(refused(r#"{"success":0,"status":"400","message":"x\n","data":null}"#), "a 400 must name parameters");
        assert!(refused(r#"{"success":0,"status":404,"message":"x\n","data":null}"#), "Proxmox never returns 404");
        assert!(refused(r#"{"success":0,"status":500,"data":null}"#), "extjs has a message in every release");
        assert!(refused(r#"{"success":0,"status":500,"message":"x\n","data":5}"#), "an error must not have data");
        assert!(
            verify_body(Flavour::V7, "/api2/json/version", 500, r#"{"data":null,"message":"x\n"}"#).is_err(),
            "release 7 has no message in JSON errors"
        );
        assert!(verify_body(Flavour::V8, "/api2/json/version", 500, r#"{"data":null}"#).is_err());
    }

    #[test]
    fn responses_without_a_method_are_not_checked() {
        let raw = LabResponse { status: 595, ..LabResponse::default() };
        assert_eq!(verify_response(Flavour::V9, &LabRequest::new("GET", "/api2/json/version"), &raw), Ok(None));
        assert_eq!(verify_body(Flavour::V9, "/api2/json/nosuch", 501, "{}"), Ok(None));
        assert_eq!(verify_body(Flavour::V9, "/index.html", 200, "{}"), Ok(None));
    }

    #[test]
    fn invalid_parameters_are_named() {
        let config = "/api2/json/nodes/pve1/qemu/100/config";
        check_request("PUT", config, "cores=2&digest=abc", None);
        let text = "type check ('integer') failed - got 'x'";
        check_request("PUT", config, "cores=x", Some(&format!("PUT /nodes/{{node}}/qemu/{{vmid}}/config: `cores`: {text}")));
        check_request("POST", "/api2/json/version", "", Some("Method 'POST /version' not implemented"));
        check_request("GET", "/index.html", "", Some("`/index.html` is not an API path"));
    }
}
