//! The table of the API for those who talk to it: whether a request is one that Proxmox would take.
//!
//! What never enters here: a world. This is about the form of a request, not about its meaning.

use crate::decode::{self, Target};
use crate::flavour::Flavour;
use crate::schema::{self, Given, Params};
use crate::wire::Request;

/// Check method, path and parameters of a request against the table of a release.
///
/// # Errors
/// What Proxmox would say: no such method, or what is wrong with each parameter.
pub fn verify_request(flavour: Flavour, request: &Request) -> Result<(), String> {
    let (path, query) = decode::split_query(&request.path);
    let Target::Api { segments, .. } = decode::target(path) else { return Err(format!("`{path}` is no path of the API")) };
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    let found = schema::find(&request.method, &words, flavour);
    let (method, captured) = found.ok_or_else(|| format!("Method '{} /{}' not implemented", request.method, words.join("/")))?;
    let body = if is_json(request) { decode::json(&request.body)? } else { decode::form(&request.body) };
    let params = decode::merge(body, decode::form(query.as_bytes()));
    let captured: Params = captured.into_iter().map(|(name, value)| (name, Given::Text(value))).collect();
    let errors = schema::check(method, &decode::merge(params, captured), flavour).err().unwrap_or_default();
    match errors.into_iter().next() {
        Some((name, error)) => Err(format!("{} {}: `{name}`: {}", method.verb, method.template, error.trim_end())),
        None => Ok(()),
    }
}

fn is_json(request: &Request) -> bool {
    request.find("Content-Type").is_some_and(|content| content.starts_with("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, path: &str, form: &str, wrong: Option<&str>) {
        let request = Request { body: form.as_bytes().to_vec(), ..Request::new(method, path) };
        let found = verify_request(Flavour::V9, &request).err();
        assert_eq!(found.as_deref(), wrong, "{method} {path} {form}");
    }

    #[test]
    fn what_proxmox_would_refuse_is_named() {
        let config = "/api2/json/nodes/pve1/qemu/100/config";
        check("PUT", config, "cores=2&digest=abc", None);
        let text = "type check ('integer') failed - got 'x'";
        check("PUT", config, "cores=x", Some(&format!("PUT /nodes/{{node}}/qemu/{{vmid}}/config: `cores`: {text}")));
        check("POST", "/api2/json/version", "", Some("Method 'POST /version' not implemented"));
        check("GET", "/index.html", "", Some("`/index.html` is no path of the API"));
    }
}
