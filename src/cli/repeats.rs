//! Log lines that repeat: the first few of a minute are written, the others counted and told in one line.
//!
//! Owns the count. A line is the same if it comes from the same place in the code with the same message and fields, so
//! the line of a cut never is. Errors of this program are always written: one of them stops a partition. Invariant:
//! each line that was held back is counted in one that is written, a minute later or at the end; memory is bounded.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

const WINDOW: Duration = Duration::from_secs(60);
/// Of one line, in each window.
const WRITTEN: u32 = 10;
/// Different lines that are counted at a time; more are written as they come.
const LINES: usize = 1000;
/// Bytes of a message that are kept to be told again.
const MESSAGE: usize = 1000;

type Key = (Identifier, u64);

struct Line {
    metadata: &'static Metadata<'static>,
    message: String,
    since: Instant,
    written: u32,
    held: u64,
}

/// A line that was held back: what is told of it.
#[derive(Debug)]
struct Held {
    metadata: &'static Metadata<'static>,
    text: String,
}

#[derive(Default)]
struct Lines {
    lines: HashMap<Key, Line>,
    /// A thread waits for the ends of windows.
    waiting: bool,
}

impl Lines {
    /// Whether the line is written.
    fn takes(&mut self, key: Key, metadata: &'static Metadata<'static>, message: &str, now: Instant) -> bool {
        if let Some(line) = self.lines.get_mut(&key) {
            if line.held == 0 && now.duration_since(line.since) >= WINDOW {
                (line.since, line.written) = (now, 0);
            }
            let written = line.written < WRITTEN;
            line.written += u32::from(written);
            line.held += u64::from(!written);
            return written;
        }
        if self.lines.len() >= LINES {
            self.lines.retain(|_, line| line.held > 0 || now.duration_since(line.since) < WINDOW);
        }
        if self.lines.len() < LINES {
            let message = message[..message.floor_char_boundary(MESSAGE)].to_owned();
            self.lines.insert(key, Line { metadata, message, since: now, written: 1, held: 0 });
        }
        true
    }

    /// What was held back in windows that are over, or in all: the next line of each is written again.
    fn over(&mut self, now: Instant, all: bool) -> Vec<Held> {
        let mut over = Vec::new();
        for line in self.lines.values_mut().filter(|line| line.held > 0) {
            let for_so_long = now.duration_since(line.since);
            if all || for_so_long >= WINDOW {
                let (message, held, s) = (&line.message, line.held, for_so_long.as_secs().max(1));
                let text = format!("{message}: repeated {held} times in the last {s} s");
                over.push(Held { metadata: line.metadata, text });
                (line.since, line.written, line.held) = (now, 0, 0);
            }
        }
        over
    }

    fn next_end(&self) -> Option<Instant> {
        self.lines.values().filter(|line| line.held > 0).map(|line| line.since + WINDOW).min()
    }
}

/// The layer that holds lines back. Clones share what they count.
#[derive(Clone, Default)]
pub struct Repeats(Arc<Mutex<Lines>>);

thread_local! {
    /// What is written is about lines that were held back.
    static TELLING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Repeats {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// At the end of the program: what was held back is told now.
    pub fn tell_all(&self) {
        let held = self.lock().over(Instant::now(), true);
        tell(held);
    }

    fn wait_and_tell(&self) {
        loop {
            let next = {
                let mut lines = self.lock();
                let next = lines.next_end();
                lines.waiting = next.is_some();
                next
            };
            let Some(end) = next else { return };
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            let held = self.lock().over(Instant::now(), false);
            tell(held);
        }
    }

    fn takes(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if TELLING.get() || *metadata.level() == Level::ERROR && metadata.target().starts_with("dlq_archiver") {
            return true;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let mut hasher = DefaultHasher::new();
        (&text.message, &text.fields).hash(&mut hasher);
        let mut lines = self.lock();
        let written = lines.takes((metadata.callsite(), hasher.finish()), metadata, &text.message, Instant::now());
        if !written && !lines.waiting {
            let repeats = self.clone();
            let thread = std::thread::Builder::new().name("log".into()).spawn(move || repeats.wait_and_tell());
            lines.waiting = thread.is_ok();
        }
        written
    }
}

/// Writes each as what it repeats was: same level, same target.
fn tell(held: Vec<Held>) {
    for Held { metadata, text } in held {
        let Some(message) = metadata.fields().field("message") else { continue };
        let values = [(&message, Some(&text as &dyn tracing::Value))];
        TELLING.set(true);
        Event::dispatch(metadata, &metadata.fields().value_set(&values));
        TELLING.set(false);
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.takes(event)
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "{name}={value:?} "),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn lines(&self) -> Vec<String> {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            text.lines().map(|l| l.split_once(": ").unwrap().1.to_owned()).collect()
        }
    }

    /// What is logged by `log`, and held back by `repeats`.
    fn logged(repeats: &Repeats, log: impl FnOnce()) -> Vec<String> {
        let written = Log::default();
        let to = written.clone();
        let format = tracing_subscriber::fmt::layer().with_ansi(false).without_time().with_writer(move || to.clone());
        let subscriber = tracing_subscriber::registry().with(repeats.clone()).with(format);
        tracing::subscriber::with_default(subscriber, log);
        written.lines()
    }

    #[test]
    fn a_line_that_repeats_is_written_ten_times_and_then_counted() {
        let repeats = Repeats::default();
        let lines = logged(&repeats, || {
            for i in 0..50 {
                tracing::warn!("the store does not answer");
                tracing::warn!("try {i}");
                tracing::info!(from = i, "archived");
                tracing::error!("t/0: stopped");
            }
            repeats.tell_all();
            repeats.tell_all();
        });
        let count = |what: &str| lines.iter().filter(|l| l.contains(what)).count();
        assert_eq!(count("does not answer: repeated 40 times in the last 1 s"), 1, "{lines:?}");
        assert_eq!(count("does not answer"), 11);
        assert_eq!((count("try "), count("archived"), count("stopped")), (50, 50, 50));
    }

    #[test]
    fn a_new_window_writes_again_and_what_was_held_back_is_told_once() {
        let (mut lines, now) = (Lines::default(), Instant::now());
        let metadata = *TESTED;
        let key = (metadata.callsite(), 1);
        let mut at = |s| {
            let now = now + Duration::from_secs(s);
            (lines.takes(key.clone(), metadata, "m", now), lines.over(now, false).len(), lines.next_end().is_some())
        };
        for _ in 0..10 {
            assert_eq!(at(1), (true, 0, false));
        }
        assert_eq!(at(2), (false, 0, true));
        assert_eq!(at(60), (false, 0, true));
        // Told, and a new window begins.
        assert_eq!(at(61), (false, 1, false));
        assert_eq!(at(62), (true, 0, false));
        assert_eq!(at(500), (true, 0, false));
    }

    #[test]
    fn many_different_lines_are_written_and_not_kept() {
        let (mut lines, now, metadata) = (Lines::default(), Instant::now(), *TESTED);
        for i in 0..5000 {
            assert!(lines.takes((metadata.callsite(), i), metadata, &"x".repeat(5000), now));
        }
        assert_eq!(lines.lines.len(), LINES);
        assert!(lines.lines.values().all(|l| l.message.len() == MESSAGE));
        assert!(lines.takes((metadata.callsite(), 9999), metadata, "m", now + WINDOW));
        assert_eq!(lines.lines.len(), 1);
    }

    /// Some place in the code that logs.
    static TESTED: std::sync::LazyLock<&'static Metadata<'static>> = std::sync::LazyLock::new(|| {
        #[derive(Default, Clone)]
        struct Catch(Arc<Mutex<Option<&'static Metadata<'static>>>>);
        impl<S: Subscriber> Layer<S> for Catch {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                *self.0.lock().unwrap() = Some(event.metadata());
            }
        }
        let catch = Catch::default();
        let subscriber = tracing_subscriber::registry().with(catch.clone());
        tracing::subscriber::with_default(subscriber, || tracing::info!("x"));
        catch.0.lock().unwrap().unwrap()
    });
}
