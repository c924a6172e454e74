//! nyx-index: header to be written with the room.
