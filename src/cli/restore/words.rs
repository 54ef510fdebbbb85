//! A filter in words, for those who were not there.

use crate::archive::rfc3339;
use crate::filter::FilterDoc;

/// One line for each condition; all of them hold. None for a filter that selects everything.
pub fn of(filter: &FilterDoc) -> Vec<String> {
    let mut lines = Vec::new();
    let texts = |what: &str, texts: &[String]| {
        let one = |text: &String| match text.starts_with('^') {
            true => format!("matches {text}"),
            false => format!("is {text}"),
        };
        (!texts.is_empty()).then(|| format!("{what} {}", texts.iter().map(one).collect::<Vec<_>>().join(" or ")))
    };
    let numbers = |what: &str, numbers: &[i32]| {
        let all: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        (!all.is_empty()).then(|| format!("{what} is {}", all.join(" or ")))
    };
    let time = |ms: i64| rfc3339(ms.saturating_mul(1000));
    lines.extend(texts("dead-letter topic", &filter.topic));
    lines.extend(numbers("partition", &filter.partition));
    lines.extend(filter.offset_from.map(|offset| format!("offset is {offset} or above")));
    lines.extend(filter.offset_to.map(|offset| format!("offset is below {offset}")));
    lines.extend(filter.since_ms.map(|ms| format!("Kafka timestamp is {} or later", time(ms))));
    lines.extend(filter.until_ms.map(|ms| format!("Kafka timestamp is before {}", time(ms))));
    lines.extend(texts("pipeline", &filter.pipeline));
    lines.extend(texts("dialect", &filter.dialect));
    lines.extend(texts("error class", &filter.error_class));
    lines.extend(numbers("error code", &filter.error_code));
    let messages: Vec<String> = filter.error_message.iter().map(|regex| format!("matches {regex}")).collect();
    lines.extend((!messages.is_empty()).then(|| format!("error message {}", messages.join(" or "))));
    lines.extend(texts("event id", &filter.event_id));
    lines.extend(texts("origin topic", &filter.origin_topic));
    lines.extend(filter.record_id.as_ref().map(|ids| match &ids[..] {
        [id] => format!("record id is {id}"),
        ids => format!("record id is one of {}, see the filter as JSON", ids.len()),
    }));
    lines.extend(filter.condition.as_ref().map(|condition| format!("condition holds: {condition}")));
    lines.extend(filter.sample.map(|n| format!("of what is left, {n} chosen by a hash of their ids")));
    lines.extend(filter.limit.map(|n| format!("of what is left, the first {n} by topic, partition, offset")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_filter_has_words() {
        let text = |t: &str| vec![t.to_owned()];
        let all = FilterDoc {
            topic: vec!["a".into(), "^b".into()],
            partition: vec![1, 2],
            offset_from: Some(3),
            offset_to: Some(9),
            since_ms: Some(0),
            until_ms: Some(i64::MAX),
            pipeline: text("p"),
            dialect: text("d"),
            error_class: text("c"),
            error_code: vec![500],
            error_message: text("m"),
            event_id: text("e"),
            origin_topic: text("o"),
            record_id: Some(vec!["a/0/1".into(), "a/0/2".into()]),
            condition: Some("attempts > 3".into()),
            sample: Some(7),
            sample_to: Some(u64::MAX),
            limit: Some(5),
        };
        let lines = of(&all);
        assert_eq!(lines[0], "dead-letter topic is a or matches ^b");
        assert_eq!(lines[4], "Kafka timestamp is 1970-01-01T00:00:00.000000Z or later");
        // All but `sample_to`, which `sample` came to.
        let parts = serde_json::to_value(&all).unwrap().as_object().unwrap().len();
        assert_eq!(lines.len(), parts - 1, "{lines:#?}");
        assert!(of(&FilterDoc::default()).is_empty());
    }
}
