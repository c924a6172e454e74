//! nyx-server: header to be written with the room.
