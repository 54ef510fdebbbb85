//! The catalog reads what was archived, in order, whichever objects it lies in.

mod support;

use dlq_archiver::catalog::{Catalog, Reading};
use dlq_archiver::cut::Tables;
use dlq_archiver::filter::{Filter, FilterDoc};
use dlq_archiver::format::{Compression, Format};
use dlq_archiver::record::RawBatch;
use support::{Rec, TestArchive, batch, fixtures};

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_what_was_archived() {
    let tables = Tables::builtin();
    for format in [Format::Parquet, Format::Jsonl(Compression::Gzip)] {
        let archive = TestArchive::of_fixtures(format).await;
        let catalog = Catalog::open(archive.store.clone()).await.unwrap();
        assert_eq!(catalog.archive(), &archive.archive);
        let selected = catalog.select(&Filter::default()).await.unwrap();
        let mut cuts = catalog.cuts(selected, &Filter::default(), Reading::RESTORE);
        for ((topic, partition), batch) in fixtures() {
            let cut = cuts.next().await.unwrap().unwrap();
            assert_eq!((&cut.manifest().topic, cut.manifest().partition), (&topic, partition));
            assert_eq!(cut.len(), batch.len(), "{topic}/{partition}");
            for (i, (row, raw)) in cut.iter().zip(batch.iter()).enumerate() {
                let mut decoded = tables.dialects.decode(&topic, partition, &raw);
                decoded.hops.clear();
                assert_eq!(row.decoded, decoded, "{}", row.id);
                assert_eq!(row.pipeline, tables.routing.pipeline(&topic, &decoded));
                assert_eq!(Some(row.pipeline), cut.object(i).pipeline.as_deref());
                let mut scratch = Vec::new();
                assert_eq!(row.raw.checksum(&mut scratch), raw.checksum(&mut scratch), "{}", row.id);
                assert_eq!(row.raw.timestamp_type, raw.timestamp_type);
                assert_eq!(row.key_size.map(|n| n as usize), raw.key.map(<[u8]>::len));
                assert_eq!(row.value_size.map(|n| n as usize), raw.value.map(<[u8]>::len));
                assert_eq!((row.archived_at_us, row.cluster_id), (support::CUT_AT_US, Some("cluster-1")));
            }
        }
        assert!(cuts.next().await.unwrap().is_none());
    }
}

/// Three days in turn: each cut has three objects whose offsets interleave.
fn interleaved(from: i64, to: i64) -> RawBatch {
    let day = 86_400_000;
    let rows: Vec<_> =
        (from..to).map(|offset| Rec { offset, timestamp_ms: offset % 3 * day + offset, ..Rec::default() }).collect();
    batch(&rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn cuts_and_offsets_stay_in_order() {
    let mut archive = TestArchive::new(Format::Parquet).await;
    for (topic, partition) in [("b-dlt", 0), ("a-dlt", 10), ("a-dlt", 2)] {
        for cut in 0..12 {
            archive.cut(topic, partition, cut * 10, cut * 10 + 10, interleaved(cut * 10, cut * 10 + 10), vec![]).await;
        }
    }
    archive.cut_in("a-dlt", 2, 2, 0, 10, interleaved(0, 10), vec![]).await;
    let catalog = Catalog::open(archive.store.clone()).await.unwrap();
    let read = async |filter: &Filter| {
        let selected = catalog.select(filter).await.unwrap();
        let count = selected.len();
        let mut cuts = catalog.cuts(selected, filter, Reading::LIST);
        let mut ids = Vec::new();
        while let Some(cut) = cuts.next().await.unwrap() {
            ids.extend(cut.iter().map(|r| r.id));
        }
        (count, ids)
    };
    let (cuts, ids) = read(&Filter::default()).await;
    assert_eq!((cuts, ids.len()), (37, 370));
    let order: Vec<_> = ids.iter().map(|id| (&id.topic, id.partition, id.generation, id.offset)).collect();
    assert!(order.is_sorted(), "topic, partition, generation, offset");

    let only = |doc: FilterDoc| Filter::new(doc).unwrap();
    let (cuts, ids) =
        read(&only(FilterDoc { offset_from: Some(38), offset_to: Some(41), ..FilterDoc::default() })).await;
    assert_eq!((cuts, ids.len()), (6, 9), "of each partition two cuts and three records");
    let day = FilterDoc { since_ms: Some(86_400_000), until_ms: Some(2 * 86_400_000), ..FilterDoc::default() };
    assert!(read(&only(day)).await.1.iter().all(|id| id.offset % 3 == 1));
    let wanted = ["a-dlt/2/5@g2", "a-dlt/10/119", "b-dlt/0/0"].map(str::to_owned).to_vec();
    let (cuts, ids) = read(&only(FilterDoc { record_id: Some(wanted.clone()), ..FilterDoc::default() })).await;
    assert_eq!(cuts, 3);
    assert_eq!(ids.iter().map(ToString::to_string).collect::<Vec<_>>(), wanted);
}
