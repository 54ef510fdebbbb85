//! A TCP proxy between a program and one Kafka broker that writes down what is asked, and can hold a request or its
//! answer.
//!
//! Owns as much of Kafka's protocol as it takes to tell what a client asks of a broker. The broker names its own port
//! in some answers; the proxy puts its own there, so that the client never learns of another.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const PRODUCE: i16 = 0;
pub const METADATA: i16 = 3;
pub const FIND_COORDINATOR: i16 = 10;
pub const API_VERSIONS: i16 = 18;
pub const INIT_PRODUCER_ID: i16 = 22;
pub const ADD_PARTITIONS_TO_TXN: i16 = 24;
pub const ADD_OFFSETS_TO_TXN: i16 = 25;
pub const END_TXN: i16 = 26;
pub const TXN_OFFSET_COMMIT: i16 = 28;
pub const DESCRIBE_CONFIGS: i16 = 32;

/// A request that went through.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub api: i16,
    pub version: i16,
    pub correlation: i32,
    pub client_id: Option<String>,
    pub body: Body,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    Produce(Produce),
    FindCoordinator { of_transactions: bool },
    Other,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Produce {
    pub transactional_id: Option<String>,
    pub acks: i16,
    pub batches: Vec<Batch>,
}

/// A record batch, or what stands at its place in an older format.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub topic: String,
    pub partition: i32,
    pub magic: i8,
    /// 0: none.
    pub compression: i16,
    pub transactional: bool,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub records: i32,
}

/// What is to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The broker never sees it.
    Request,
    /// The broker has done it; the client never hears of it.
    Answer,
}

struct Hold {
    side: Side,
    api: i16,
    /// How many of them pass before.
    pass: usize,
    held: Sender<()>,
    goes_on: Receiver<()>,
}

/// One that is to be held.
pub struct Held {
    held: Receiver<()>,
    go_on: Sender<()>,
}

impl Held {
    /// Waits until it is.
    pub fn wait(&self) {
        self.held.recv_timeout(PATIENCE).expect("it is not asked for");
    }

    /// Lets it go on. Without that it is held for ever.
    pub fn release(self) {
        self.go_on.send(()).unwrap();
    }
}

#[derive(Default)]
struct Log {
    requests: Vec<Request>,
    /// Keys that the broker says it has.
    offered: BTreeSet<i16>,
    /// What could not be read, or went wrong.
    wrong: Vec<String>,
    hold: Option<Hold>,
}

impl Log {
    /// The hold that is meant for this one.
    fn holds(&mut self, side: Side, api: i16) -> Option<Hold> {
        let hold = self.hold.as_mut().filter(|hold| (hold.side, hold.api) == (side, api))?;
        if hold.pass > 0 {
            hold.pass -= 1;
            return None;
        }
        self.hold.take()
    }
}

/// The proxy. It lives as long as the process.
pub struct Wire {
    port: u16,
    log: Arc<Mutex<Log>>,
}

impl Wire {
    /// In front of the one broker at `127.0.0.1:PORT`.
    pub fn to(broker: &str) -> Self {
        let upstream: u16 = broker.rsplit_once("127.0.0.1:").unwrap().1.parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Arc::new(Mutex::new(Log::default()));
        let shared = log.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { continue };
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                let open = Arc::new(Mutex::new(Vec::new()));
                let both = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (a, b) = (Way { log: shared.clone(), open: open.clone() }, Way { log: shared.clone(), open });
                std::thread::spawn(move || a.requests(client, server));
                std::thread::spawn(move || b.answers(both.1, both.0, upstream, port));
            }
        });
        Self { port, log }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        let log = self.log.lock().unwrap();
        assert!(log.wrong.is_empty(), "{:?}", log.wrong);
        log.requests.clone()
    }

    /// The keys of all requests so far.
    pub fn keys(&self) -> BTreeSet<i16> {
        self.requests().iter().map(|r| r.api).collect()
    }

    pub fn produced(&self) -> Vec<Produce> {
        let bodies = self.requests().into_iter().map(|r| r.body);
        bodies.filter_map(|b| if let Body::Produce(produce) = b { Some(produce) } else { None }).collect()
    }

    /// Keys that the broker offers.
    pub fn offered(&self) -> BTreeSet<i16> {
        self.log.lock().unwrap().offered.clone()
    }

    /// From now on `pass` of this kind go through, and the next one is held.
    pub fn hold(&self, side: Side, api: i16, pass: usize) -> Held {
        let ((says, held), (go_on, goes_on)) = (channel(), channel());
        self.log.lock().unwrap().hold = Some(Hold { side, api, pass, held: says, goes_on });
        Held { held, go_on }
    }
}

/// One connection in one direction.
struct Way {
    log: Arc<Mutex<Log>>,
    /// Requests without an answer, by correlation id: key and version.
    open: Arc<Mutex<Vec<(i32, i16, i16)>>>,
}

impl Way {
    fn wrong(&self, what: String) {
        self.log.lock().unwrap().wrong.push(what);
    }

    /// Whether it may go on, after it was held if it was to be.
    fn passes(&self, side: Side, api: i16) -> bool {
        let hold = self.log.lock().unwrap().holds(side, api);
        hold.is_none_or(|hold| hold.held.send(()).is_ok() && hold.goes_on.recv().is_ok())
    }

    fn requests(&self, mut client: TcpStream, mut server: TcpStream) {
        while let Some(frame) = frame(&mut client) {
            let Some(request) = request(&frame[4..]) else {
                self.wrong(format!("a request that is not understood: {:02x?}", &frame[..frame.len().min(64)]));
                break;
            };
            let api = request.api;
            // Answers come in the order of requests; one with acks=0 would have none.
            self.open.lock().unwrap().push((request.correlation, api, request.version));
            if !self.passes(Side::Request, api) {
                return;
            }
            self.log.lock().unwrap().requests.push(request);
            if server.write_all(&frame).is_err() {
                break;
            }
        }
        let _ = (server.shutdown(Shutdown::Both), client.shutdown(Shutdown::Both));
    }

    fn answers(&self, mut server: TcpStream, mut client: TcpStream, upstream: u16, own: u16) {
        while let Some(mut frame) = frame(&mut server) {
            let correlation = i32::from_be_bytes(frame[4..8].try_into().unwrap());
            let asked = {
                let mut open = self.open.lock().unwrap();
                open.iter().position(|(id, ..)| *id == correlation).map(|at| open.remove(at))
            };
            let Some((_, api, version)) = asked else {
                self.wrong(format!("an answer to nothing: {correlation}"));
                break;
            };
            if api == API_VERSIONS {
                match offered(&frame[8..], version) {
                    Some(offered) => self.log.lock().unwrap().offered.extend(offered),
                    None => self.wrong(format!("ApiVersions {version} is not understood")),
                }
            }
            let moved = redirect(&mut frame, upstream, own);
            if moved > 0 && ![METADATA, FIND_COORDINATOR].contains(&api) {
                self.wrong(format!("an answer to {api} names the broker"));
            }
            if !self.passes(Side::Answer, api) {
                return;
            }
            if client.write_all(&frame).is_err() {
                break;
            }
        }
        let _ = (server.shutdown(Shutdown::Both), client.shutdown(Shutdown::Both));
    }
}

/// A message with its length before it.
fn frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; 4];
    stream.read_exact(&mut frame).ok()?;
    let length = usize::try_from(i32::from_be_bytes(frame[..4].try_into().unwrap())).ok()?;
    frame.resize(4 + length, 0);
    stream.read_exact(&mut frame[4..]).ok()?;
    Some(frame)
}

/// Puts one port in the place of another wherever it stands behind this host's address; how often.
fn redirect(frame: &mut [u8], from: u16, to: u16) -> usize {
    let named = [b"127.0.0.1", &i32::from(from).to_be_bytes()[..]].concat();
    let places: Vec<usize> =
        (0..frame.len().saturating_sub(named.len() - 1)).filter(|i| frame[*i..].starts_with(&named)).collect();
    for place in &places {
        let port = place + named.len() - 4;
        frame[port..port + 4].copy_from_slice(&i32::from(to).to_be_bytes());
    }
    places.len()
}

/// Takes values of Kafka's protocol from the front.
struct Values<'b>(&'b [u8]);

impl<'b> Values<'b> {
    fn take(&mut self, n: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }
    fn i8(&mut self) -> Option<i8> {
        Some(self.take(1)?[0].cast_signed())
    }
    fn i16(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }
    fn i32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }
    fn i64(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }
    fn unsigned(&mut self) -> Option<usize> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.take(1)?[0];
            value |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
    /// Of a flexible version, where lengths are one more than they are.
    fn compact(&mut self) -> Option<Option<usize>> {
        Some(self.unsigned()?.checked_sub(1))
    }
    fn tags(&mut self, flexible: bool) -> Option<()> {
        if flexible {
            for _ in 0..self.unsigned()? {
                self.unsigned()?;
                let length = self.unsigned()?;
                self.take(length)?;
            }
        }
        Some(())
    }
    fn length(&mut self, flexible: bool) -> Option<usize> {
        if flexible { Some(self.compact()?.unwrap_or(0)) } else { usize::try_from(self.i32()?.max(0)).ok() }
    }
    fn text(&mut self, flexible: bool) -> Option<Option<String>> {
        let length = if flexible { self.compact()? } else { usize::try_from(self.i16()?).ok() };
        let Some(length) = length else { return Some(None) };
        Some(Some(String::from_utf8(self.take(length)?.to_vec()).ok()?))
    }
}

/// `None` for what is not understood.
fn request(bytes: &[u8]) -> Option<Request> {
    let mut v = Values(bytes);
    let (api, version, correlation) = (v.i16()?, v.i16()?, v.i32()?);
    let client_id = v.text(false)?;
    let body = match api {
        PRODUCE => Body::Produce(produce(&mut v, version)?),
        FIND_COORDINATOR => Body::FindCoordinator { of_transactions: of_transactions(&mut v, version)? },
        _ => Body::Other,
    };
    Some(Request { api, version, correlation, client_id, body })
}

fn of_transactions(v: &mut Values<'_>, version: i16) -> Option<bool> {
    v.tags(version >= 3)?;
    if version <= 3 {
        v.text(version == 3)?;
    }
    Some(version >= 1 && v.i8()? == 1)
}

fn produce(v: &mut Values<'_>, version: i16) -> Option<Produce> {
    // From 13 on topics have ids in place of names.
    let flexible = (9..13).contains(&version);
    if !(flexible || (3..9).contains(&version)) {
        return None;
    }
    v.tags(flexible)?;
    let transactional_id = v.text(flexible)?;
    let (acks, _timeout) = (v.i16()?, v.i32()?);
    let mut batches = Vec::new();
    for _ in 0..v.length(flexible)? {
        let topic = v.text(flexible)??;
        for _ in 0..v.length(flexible)? {
            let partition = v.i32()?;
            let length = v.length(flexible)?;
            let mut records = Values(v.take(length)?);
            while !records.0.is_empty() {
                batches.push(batch(&mut records, &topic, partition)?);
            }
            v.tags(flexible)?;
        }
        v.tags(flexible)?;
    }
    v.tags(flexible)?;
    v.0.is_empty().then_some(Produce { transactional_id, acks, batches })
}

fn batch(v: &mut Values<'_>, topic: &str, partition: i32) -> Option<Batch> {
    let (_base_offset, length) = (v.i64()?, usize::try_from(v.i32()?).ok()?);
    let mut v = Values(v.take(length)?);
    let (_leader_epoch, magic) = (v.i32()?, v.i8()?);
    if magic != 2 {
        // An older message begins with a checksum where the leader's epoch is now.
        let compression = i16::from(v.i8()? & 7);
        let (topic, records) = (topic.to_owned(), 1);
        let (producer_id, producer_epoch, base_sequence) = (-1, -1, -1);
        let transactional = false;
        return Some(Batch {
            topic,
            partition,
            magic,
            compression,
            transactional,
            producer_id,
            producer_epoch,
            base_sequence,
            records,
        });
    }
    let (_crc, attributes) = (v.i32()?, v.i16()?);
    let (_last_offset, _first, _largest) = (v.i32()?, v.i64()?, v.i64()?);
    Some(Batch {
        topic: topic.to_owned(),
        partition,
        magic,
        compression: attributes & 7,
        transactional: attributes & 0x10 != 0,
        producer_id: v.i64()?,
        producer_epoch: v.i16()?,
        base_sequence: v.i32()?,
        records: v.i32()?,
    })
}

/// The keys in an answer to ApiVersions, behind its header, which has no tags in any version. None if the broker does not
/// have that version: the client asks again.
fn offered(bytes: &[u8], version: i16) -> Option<Vec<i16>> {
    let mut v = Values(bytes);
    let mut keys = Vec::new();
    if v.i16()? == 0 {
        for _ in 0..v.length(version >= 3)? {
            keys.push(v.i16()?);
            v.take(4)?;
            v.tags(version >= 3)?;
        }
    }
    Some(keys)
}

/// How long to wait for what is to happen.
pub const PATIENCE: Duration = Duration::from_secs(60);
