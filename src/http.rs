//! A small HTTP server for probes and scrapes: GET and HEAD of a few pages, one request a connection.
//!
//! Knows nothing of what the pages say. Invariant: a client costs at most [`LIFE`] and a few KiB, and none waits for
//! another, up to [`CLIENTS`] of them.

use crate::error::{Error, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// For the request's head.
const HEAD: Duration = Duration::from_secs(5);
/// For all of a connection.
const LIFE: Duration = Duration::from_secs(15);
/// hyper takes no less.
const HEAD_BYTES: usize = 8 << 10;
/// At a time; who comes after them waits.
const CLIENTS: usize = 100;

/// What is answered.
#[derive(Debug)]
pub struct Page {
    pub status: u16,
    pub content_type: &'static str,
    pub body: String,
}

/// From a path and an `Accept` header to a page; `None`: there is none.
pub type Pages = dyn Fn(&str, &str) -> Option<Page> + Send + Sync;

/// # Errors
/// [`crate::Kind::Config`] if it cannot listen there.
pub async fn listen(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|e| {
        let next = match e.kind() {
            std::io::ErrorKind::AddrInUse => "another program listens there: choose another port",
            std::io::ErrorKind::PermissionDenied => "ports below 1024 need a right of their own: choose a higher one",
            _ => "it takes an address of this machine and a port, such as 0.0.0.0:9464 or 127.0.0.1:9464",
        };
        Error::config(format!("cannot listen on {address}: {e}; {next}"))
    })
}

pub fn address(listener: &TcpListener) -> Option<SocketAddr> {
    listener.local_addr().ok()
}

/// Serves until it is dropped; connections that are open then end with the program.
pub async fn serve(listener: TcpListener, pages: Arc<Pages>) {
    let clients = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(permit) = clients.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let pages = pages.clone();
                tokio::spawn(async move {
                    // A client that is too slow, or speaks something else, is let go without a word.
                    let _ = tokio::time::timeout(LIFE, connection(stream, &pages)).await;
                    drop(permit);
                });
            }
            Err(e) => {
                // Too many open files, for one: it passes.
                tracing::debug!("cannot accept a connection: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, pages: &Arc<Pages>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let pages = pages.clone();
        async move { Ok::<_, Infallible>(answer(&request, &*pages)) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).keep_alive(false).max_buf_size(HEAD_BYTES);
    if let Err(e) = http.serve_connection(TokioIo::new(stream), answer).await {
        tracing::trace!("a connection ended: {e}");
    }
}

fn answer<B>(request: &Request<B>, pages: &Pages) -> Response<Full<Bytes>> {
    let accept = request.headers().get(ACCEPT).and_then(|a| a.to_str().ok()).unwrap_or_default();
    // HEAD: hyper leaves the body out.
    let may = matches!(*request.method(), Method::GET | Method::HEAD);
    let plain = |status, text: &str| Page { status, content_type: "text/plain; charset=utf-8", body: text.to_owned() };
    let page = if may {
        pages(request.uri().path(), accept)
            .unwrap_or_else(|| plain(404, "not found: there are /metrics, /livez and /readyz\n"))
    } else {
        plain(405, "only GET and HEAD\n")
    };
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() = StatusCode::from_u16(page.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if !may {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn server() -> SocketAddr {
        let listener = listen("127.0.0.1:0").await.unwrap();
        let address = address(&listener).unwrap();
        let page = |path: &str, accept: &str| {
            let body = format!("it is well, {accept}\n");
            (path == "/livez").then_some(Page { status: 200, content_type: "text/plain", body })
        };
        tokio::spawn(serve(listener, Arc::new(page)));
        address
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may answer before it has read all.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn pages_are_got_and_nothing_else_is() {
        let address = server().await;
        let get = ask(address, "GET /livez?x=1 HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\n\r\n").await;
        assert!(get.starts_with("HTTP/1.1 200 OK\r\n") && get.ends_with("\r\n\r\nit is well, text/html\n"), "{get}");
        assert!(get.contains("connection: close\r\n"), "{get}");
        let head = ask(address, "HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let missing = ask(address, "GET /../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(missing.starts_with("HTTP/1.1 404 "), "{missing}");
        let post = ask(address, "POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello").await;
        assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD\r\n"), "{post}");
        let old = ask(address, "GET /livez HTTP/1.0\r\n\r\n").await;
        assert!(old.starts_with("HTTP/1.0 200 OK\r\n"), "{old}");
    }

    #[tokio::test]
    async fn a_head_without_end_is_refused() {
        let address = server().await;
        let long = format!("GET /livez HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(HEAD_BYTES * 2));
        let answer = ask(address, &long).await;
        assert!(!answer.contains("200"), "{answer}");
    }

    #[tokio::test]
    async fn clients_that_say_nothing_keep_nobody_waiting() {
        let address = server().await;
        let mut silent = Vec::new();
        for _ in 0..CLIENTS - 1 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let asked = ask(address, "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = tokio::time::timeout(Duration::from_secs(2), asked).await.expect("it waits for them");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // And they are let go.
        let mut byte = [0];
        let end = tokio::time::timeout(HEAD * 2, silent[0].read(&mut byte)).await.expect("it is kept for ever");
        assert!(matches!(end, Ok(0) | Err(_)) || byte[0] == b'H', "{end:?}");
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named() {
        let taken = listen("127.0.0.1:0").await.unwrap();
        let at = address(&taken).unwrap().to_string();
        let error = listen(&at).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.message().contains(&at) && error.message().contains("another program listens there"), "{error}");
        let error = listen("nonsense").await.unwrap_err();
        assert!(error.kind() == Kind::Config && error.message().contains("such as 0.0.0.0:9464"), "{error}");
    }
}
