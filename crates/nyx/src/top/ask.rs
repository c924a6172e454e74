//! Asks a server for a [`Sample`] over one connection, in one write.
//!
//! What it never does: understand a figure, or wait for ever: the connection has a time limit.

use super::sample::{Answer, QUESTIONS, Sample};
use crate::load::LoadError;
use crate::load::address::{Address, Blocking, Login};
use crate::{Exit, Failure};
use nyx_proto::response::{Kind, Parse, parse};

/// The longest that all answers together may be, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Room for the answers to begin with, in bytes.
const ANSWER_BYTES: usize = 64 << 10;

/// A connection to one server, made when it is needed and made anew after a failure.
pub(crate) struct Asker {
    address: Address,
    login: Option<Login>,
    stream: Option<Box<dyn Blocking>>,
}

impl Asker {
    /// Of a server that is not asked yet.
    pub(crate) fn new(address: Address, login: Option<Login>) -> Asker {
        Asker {
            address,
            login,
            stream: None,
        }
    }

    /// One reading.
    ///
    /// Errors: exit 69 where nobody answers, 77 where a login is needed or refused, 74 where the
    /// answer is not that of a Nyx server.
    pub(crate) fn sample(&mut self) -> Result<Sample, Failure> {
        let asked = self.exchange();
        if asked.is_err() {
            self.stream = None;
        }
        asked
    }

    fn exchange(&mut self) -> Result<Sample, Failure> {
        let (address, login) = (&self.address, self.login.as_ref());
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(address.enter(login).map_err(|e| unreached(address, e))?),
        };
        let questions = QUESTIONS.join("\r\n") + "\r\n";
        let lost = |error: std::io::Error| {
            let message = format!("lost the server at {address}: {error}");
            Failure::new(Exit::Unavailable, message)
        };
        stream.write_all(questions.as_bytes()).map_err(lost)?;
        let (mut input, mut answers) = (Vec::with_capacity(ANSWER_BYTES), Answers::default());
        let mut part = vec![0; ANSWER_BYTES];
        while answers.done < QUESTIONS.len() {
            match stream.read(&mut part).map_err(lost)? {
                0 => return Err(lost(std::io::ErrorKind::UnexpectedEof.into())),
                n => input.extend_from_slice(&part[..n]),
            }
            let taken = answers
                .take(&input)
                .map_err(|line| refused(address, &line))?;
            input.drain(..taken);
            if input.len() > ANSWER_BYTES_MAX {
                return Err(refused(address, "an answer without an end"));
            }
        }
        Sample::read(&answers.of).map_err(|what| refused(address, &what))
    }
}

/// The answers as they come in.
#[derive(Default)]
struct Answers {
    of: [Answer; QUESTIONS.len()],
    done: usize,
}

impl Answers {
    /// Takes all whole lines; gives how many bytes they are. Errors: the line that is none of an
    /// answer to `stats`.
    fn take(&mut self, input: &[u8]) -> Result<usize, String> {
        let mut at = 0;
        while self.done < self.of.len() {
            let (response, used) = match parse(&input[at..]) {
                Parse::Done { response, used } => (response, used),
                Parse::Need { .. } => break,
                Parse::Bad => return Err(first_line(&input[at..])),
            };
            let text = String::from_utf8_lossy(response.rest);
            match response.kind {
                Kind::Stat => {
                    let (name, value) = text.split_once(' ').unwrap_or((&text, ""));
                    self.of[self.done].push((name.to_owned(), value.to_owned()));
                }
                Kind::End => self.done += 1,
                _ => return Err(first_line(&input[at..])),
            }
            at += used;
        }
        Ok(at)
    }
}

fn first_line(input: &[u8]) -> String {
    let line = input.split(|&byte| byte == b'\n').next().unwrap_or(input);
    String::from_utf8_lossy(&line[..line.len().min(80)])
        .trim_end()
        .to_owned()
}

/// Why a server could not be reached, and what to look at.
fn unreached(address: &Address, error: LoadError) -> Failure {
    match error {
        LoadError::Connect { source, .. } => Failure::new(
            Exit::Unavailable,
            format!("cannot reach a server at {address}: {source}; is `nyx serve` running there?"),
        ),
        other => other.into(),
    }
}

/// What a server said instead of an answer.
fn refused(address: &Address, said: &str) -> Failure {
    if said.contains("unauthenticated") {
        let how = "give one with --login USER:PASSWORD or in NYX_LOGIN";
        return Failure::new(Exit::NoPerm, format!("{address} asks for a login: {how}"));
    }
    let message = format!("{address} does not answer as a Nyx server does: it answers {said}");
    Failure::new(Exit::Io, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_pieces() {
        let all = b"STAT a 1\r\nEND\r\nSTAT b:c two words\r\nEND\r\nEND\r\nSTAT d\r\nEND\r\n";
        let (mut answers, mut input) = (Answers::default(), Vec::new());
        for byte in all {
            assert!(answers.done < 4);
            input.push(*byte);
            let taken = answers.take(&input).expect("sound");
            input.drain(..taken);
        }
        let line = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let want = [
            line("a", "1"),
            line("b:c", "two words"),
            vec![],
            line("d", ""),
        ];
        assert_eq!((answers.done, answers.of), (4, want));
    }

    #[test]
    fn what_is_no_answer_is_told_with_what_to_do() {
        let address: Address = "127.0.0.1:1".parse().expect("an address");
        let line = Answers::default().take(b"CLIENT_ERROR unauthenticated\r\n");
        let failure = refused(&address, &line.expect_err("no answer"));
        assert_eq!(failure.code, Exit::NoPerm);
        assert!(failure.message.contains("--login"), "{failure}");
        let line = Answers::default().take(b"HTTP/1.1 400 Bad Request\r\n");
        let failure = refused(&address, &line.expect_err("no answer"));
        assert_eq!(failure.code, Exit::Io);
        assert!(failure.message.contains("HTTP/1.1 400"), "{failure}");
    }
}
