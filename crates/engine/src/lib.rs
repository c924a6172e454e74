//! nyx-engine: header to be written with the room.
