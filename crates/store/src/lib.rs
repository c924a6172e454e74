//! nyx-store: header to be written with the room.
