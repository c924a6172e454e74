//! nyx-proto: header to be written with the room.
