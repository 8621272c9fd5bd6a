//! The words of a command as a shell reads them (POSIX §2.2, and bash's `$'…'`). Nothing is run and nothing expanded.

use std::iter::Peekable;
use std::str::Chars;

/// The words of one command, up to a pipe or its end; redirections are left out. An error never holds what was written.
pub fn words(line: &str) -> Result<Vec<String>, String> {
    if [" ^\"", "^\n", "^\r\n"].iter().any(|sign| line.contains(sign)) {
        return Err("the line is written for Windows' cmd: copy it as for bash".into());
    }
    let mut reader = Reader { rest: line.trim().chars().peekable(), words: Vec::new(), word: None, drops: false };
    reader.read()?;
    Ok(reader.words)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    words: Vec<String>,
    /// What there is of the word that has begun.
    word: Option<Word>,
    /// The next word is where a redirection leads.
    drops: bool,
}

#[derive(Default)]
struct Word {
    bytes: Vec<u8>,
    is_quoted: bool,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<(), String> {
        while let Some(letter) = self.rest.next() {
            match letter {
                ' ' | '\t' => self.end_word()?,
                '\r' if self.rest.peek() == Some(&'\n') => {}
                '\n' => {
                    self.end_word()?;
                    if self.rest.any(|letter| !letter.is_whitespace()) {
                        return Err("there is more than one line: end each but the last with a \\".into());
                    }
                }
                '#' if self.word.is_none() => {
                    self.rest.by_ref().take_while(|letter| *letter != '\n').for_each(drop);
                }
                '\'' => self.single()?,
                '"' => self.double()?,
                '$' => self.dollar()?,
                '\\' => self.escape(),
                '`' => return Err(NOT_RUN.into()),
                '(' | ')' => return Err("a ( or ) stands without quotes".into()),
                '|' | ';' => break,
                '&' if matches!(self.rest.peek(), None | Some('&' | '>' | ' ' | '\t' | '\n' | '\r')) => break,
                '&' => return Err("an & without quotes ends the command: put the URL in quotes".into()),
                '<' | '>' => self.redirection()?,
                _ => self.push(letter),
            }
        }
        self.end_word()
    }

    fn word(&mut self) -> &mut Word {
        self.word.get_or_insert_with(Word::default)
    }

    fn push(&mut self, letter: char) {
        self.word().bytes.extend(letter.encode_utf8(&mut [0; 4]).bytes());
    }

    fn end_word(&mut self) -> Result<(), String> {
        let Some(word) = self.word.take() else { return Ok(()) };
        let text = String::from_utf8(word.bytes).map_err(|_| "a word is not UTF-8 text")?;
        if !std::mem::take(&mut self.drops) {
            self.words.push(text);
        }
        Ok(())
    }

    fn single(&mut self) -> Result<(), String> {
        self.word().is_quoted = true;
        loop {
            match self.rest.next() {
                Some('\'') => return Ok(()),
                Some(letter) => self.push(letter),
                None => return Err(NOT_CLOSED.into()),
            }
        }
    }

    fn double(&mut self) -> Result<(), String> {
        self.word().is_quoted = true;
        loop {
            match self.rest.next() {
                Some('"') => return Ok(()),
                Some('`') => return Err(NOT_RUN.into()),
                Some('$') => self.expansion()?,
                Some('\\') => match self.rest.peek().copied() {
                    Some('$' | '`' | '"' | '\\' | '\n' | '\r') => self.escape(),
                    _ => self.push('\\'),
                },
                Some(letter) => self.push(letter),
                None => return Err(NOT_CLOSED.into()),
            }
        }
    }

    /// Behind a `$` outside of quotes.
    fn dollar(&mut self) -> Result<(), String> {
        if self.rest.next_if_eq(&'\'').is_some() {
            return self.ansi();
        }
        if self.rest.next_if_eq(&'"').is_some() {
            return self.double();
        }
        self.expansion()
    }

    /// A `$` that stands for itself, or an error where a shell would put something in its place.
    fn expansion(&mut self) -> Result<(), String> {
        match self.rest.peek() {
            Some('(') => Err(NOT_RUN.into()),
            Some(next) if next.is_ascii_alphanumeric() || "_{@*#?-$!".contains(*next) => {
                Err("a variable ($…) is not known here: write its value in its place".into())
            }
            _ => {
                self.push('$');
                Ok(())
            }
        }
    }

    /// Behind a `\` outside of quotes.
    fn escape(&mut self) {
        match self.rest.next() {
            // A line that goes on.
            Some('\n') => {}
            Some('\r') if self.rest.next_if_eq(&'\n').is_some() => {}
            Some(letter) => self.push(letter),
            None => self.push('\\'),
        }
    }

    /// Behind `$'`: as in C, up to `'`.
    fn ansi(&mut self) -> Result<(), String> {
        self.word().is_quoted = true;
        loop {
            match self.rest.next() {
                Some('\'') => return Ok(()),
                Some('\\') => self.ansi_escape()?,
                Some(letter) => self.push(letter),
                None => return Err(NOT_CLOSED.into()),
            }
        }
    }

    fn ansi_escape(&mut self) -> Result<(), String> {
        let letter = self.rest.next().ok_or(NOT_CLOSED)?;
        let byte = match letter {
            'a' => 0x07,
            'b' => 0x08,
            'e' | 'E' => 0x1b,
            'f' => 0x0c,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 0x0b,
            '0'..='7' => {
                let first = letter.to_digit(8).unwrap_or_default();
                let number = self.digits(8, 2).fold(first, |number, digit| number * 8 + digit);
                (number & 0xff) as u8
            }
            'x' => match self.digits(16, 2).reduce(|number, digit| number * 16 + digit) {
                Some(number) => number as u8,
                None => return self.as_written('x'),
            },
            'u' | 'U' => {
                let most = if letter == 'u' { 4 } else { 8 };
                return match self.digits(16, most).reduce(|number, digit| number * 16 + digit) {
                    Some(number) => {
                        self.push(char::from_u32(number).ok_or("a \\u stands for no character")?);
                        Ok(())
                    }
                    None => self.as_written(letter),
                };
            }
            '\\' | '\'' | '"' | '?' => letter as u8,
            _ => return self.as_written(letter),
        };
        self.word().bytes.push(byte);
        Ok(())
    }

    /// A `\` that means nothing.
    fn as_written(&mut self, letter: char) -> Result<(), String> {
        self.push('\\');
        self.push(letter);
        Ok(())
    }

    fn digits(&mut self, radix: u32, most: usize) -> impl Iterator<Item = u32> {
        let digits: Vec<u32> =
            (0..most).map_while(|_| self.rest.next_if(|letter| letter.is_digit(radix))?.to_digit(radix)).collect();
        digits.into_iter()
    }

    /// `> file`, `2>&1`, `<file`: the file is no word of the command.
    fn redirection(&mut self) -> Result<(), String> {
        let is_number = |word: &Word| !word.is_quoted && word.bytes.iter().all(u8::is_ascii_digit);
        if self.word.as_ref().is_some_and(is_number) {
            self.word = None;
        }
        self.end_word()?;
        while self.rest.next_if(|letter| "<>&|".contains(*letter)).is_some() {}
        if self.rest.peek() == Some(&'(') {
            return Err(NOT_RUN.into());
        }
        self.drops = true;
        Ok(())
    }
}

const NOT_CLOSED: &str = "a quote is not closed";
const NOT_RUN: &str = "a command within the line ($(…) or `…`) is not run here: write what it gives in its place";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    #[test]
    fn words_are_those_of_bash() {
        for line in [
            "a b\tc  'd e' \"f g\" h\\ i",
            "'a'\"b\"c\\d '' \"\"",
            "a \\\n  b\\\nc \"d\\\ne\"",
            r#""\$x \\ \" \q" '\n' \n"#,
            r"$'a\n\t\\\'\x41\102\u00e4\U0001F600\e[0m\q\?' $'\303\244' $'\x'",
            "$\"a\" $ a$ \"$\" a$'b'",
            "a#b # c",
            "~ä€ {a,b} [x] * ?",
        ] {
            // Globs and braces stay as they are.
            let script = format!("set -f +B +H; printf '%s\\0' {line}\n");
            let output = Command::new("bash").args(["-c", &script]).output().expect("bash");
            let text = String::from_utf8(output.stdout)
                .expect("text")
                .replace(&std::env::var("HOME").unwrap_or_default(), "~");
            let expected: Vec<&str> = text.split_terminator('\0').collect();
            assert_eq!(
                words(line).as_deref(),
                Ok(expected.iter().map(|word| String::from(*word)).collect::<Vec<_>>().as_slice()),
                "{line}"
            );
        }
    }

    #[test]
    fn a_command_ends_where_the_shell_ends_it_and_what_it_is_led_to_is_no_word() {
        for (line, expected) in [
            ("a b | c", vec!["a", "b"]),
            ("a; b", vec!["a"]),
            ("a && b", vec!["a"]),
            ("a &", vec!["a"]),
            ("a > out b 2>/dev/null c 2>&1 <in", vec!["a", "b", "c"]),
            ("a x2>out", vec!["a", "x2"]),
            ("a '2'>out", vec!["a", "2"]),
            ("a \\\r\n b\r\n", vec!["a", "b"]),
            ("", vec![]),
        ] {
            assert_eq!(words(line).expect(line), expected, "{line}");
        }
    }

    #[test]
    fn what_a_shell_would_work_out_is_not_guessed() {
        for (line, expected) in [
            ("a 's3cret", NOT_CLOSED),
            ("a \"s3cret", NOT_CLOSED),
            ("a $'s3cret", NOT_CLOSED),
            ("a $'s3cret\\", NOT_CLOSED),
            ("a $s3cret", "a variable ($…) is not known here: write its value in its place"),
            ("a \"x-key: ${s3cret}\"", "a variable ($…) is not known here: write its value in its place"),
            ("a $(s3cret)", NOT_RUN),
            ("a \"`s3cret`\"", NOT_RUN),
            ("a <(s3cret)", NOT_RUN),
            ("a (s3cret)", "a ( or ) stands without quotes"),
            ("a x?s3cret=1&b=2", "an & without quotes ends the command: put the URL in quotes"),
            ("a \\\n b\nc s3cret", "there is more than one line: end each but the last with a \\"),
            ("a ^\"s3cret^\"", "the line is written for Windows' cmd: copy it as for bash"),
            ("a $'s3cret\\xff'", "a word is not UTF-8 text"),
            ("a $'s3cret\\ud800'", "a \\u stands for no character"),
        ] {
            assert_eq!(words(line).expect_err(line), expected);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn quoted_words_are_what_was_quoted(given in prop::collection::vec("[ -~\n\tä€]{0,12}", 1..5)) {
            prop_assume!(given.iter().all(|word| !word.contains('^')), "may look like Windows' cmd");
            let single = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
            let ansi = |word: &String| format!("$'{}'", word.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n"));
            for quote in [&single as &dyn Fn(&String) -> String, &ansi] {
                let line: Vec<String> = given.iter().map(quote).collect();
                prop_assert_eq!(words(&line.join(" \\\n")), Ok(given.clone()));
            }
        }

        #[test]
        fn no_line_is_too_odd(line in "[ -~\n\tä'\"$\\\\&|<>]{0,60}") {
            let _ = words(&line);
        }
    }
}
