//! Dumps of volumes, which come in pieces: what is read can be written, and is then read as the same.

use crate::shape::Shape;
use afs_dump::{DumpHeader, Event, Fault, Reader, VnodeRecord, VolumeHeader, Writer};

/// See the module. The first byte is the size of the pieces.
pub fn run(input: &[u8]) -> u64 {
    let Some((&piece, stream)) = input.split_first() else { return Shape::EMPTY.feature() };
    let mut reader = Reader::new();
    let (mut dump, mut volume) = (DumpHeader::default(), VolumeHeader::default());
    let mut vnodes: Vec<(VnodeRecord, u64)> = Vec::new();
    let mut has_ended = false;
    let result = stream.chunks(usize::from(piece).max(1)).try_for_each(|mut input| {
        while let Some(event) = reader.next(&mut input)? {
            match event {
                Event::Dump(header) => dump = header.clone(),
                Event::Volume(header) => volume = header.clone(),
                // A sample of them: the records of many would be more than the bound on memory.
                Event::Vnode(record) if vnodes.len() < 50 => vnodes.push((record.clone(), 0)),
                Event::Vnode(_) => {}
                Event::Data(data) => {
                    if let Some((_, length)) = vnodes.last_mut() {
                        *length += data.len() as u64;
                    }
                }
                Event::End => has_ended = true,
            }
        }
        assert!(input.is_empty());
        Ok(())
    });
    let shape = match result.and_then(|()| reader.finish()) {
        Ok(()) => {
            assert!(has_ended);
            Shape::EMPTY.with(1)
        }
        Err(error) => {
            assert!(error.offset <= stream.len() as u64, "{error}");
            let shape = Shape::EMPTY.with(2).with(error.to_string().len() as u64 % 16);
            match error.fault {
                Fault::Ends { within } => shape.with(within.len() as u64),
                Fault::BadVnode { why, .. } | Fault::BadPage { why, .. } => shape.with(why.len() as u64),
                _ => shape,
            }
        }
    };
    let mut out = Vec::new();
    if let Ok(mut writer) = Writer::new(&dump, &volume, &mut out) {
        for (record, _) in &vnodes {
            if writer.vnode(record, &mut out).is_ok() {
                writer.pass(record.attributes.as_ref().and_then(|a| a.length).unwrap_or(0));
            }
        }
    }
    let data: u64 = vnodes.iter().map(|(_, length)| length).sum();
    shape.with_count(vnodes.len()).with_count(data as usize).with_count(volume.name.len()).feature()
}
