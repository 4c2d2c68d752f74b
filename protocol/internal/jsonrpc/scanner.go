// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"encoding/json"
	"fmt"
	"math/bits"
)

// maxDepth is how deep arrays and objects may be nested, as in encoding/json.
const maxDepth = 10_000

// A scanner finds the end of an object or an array that arrives in pieces, and checks its syntax.
// The zero value is ready for the first piece. Its memory does not grow.
type scanner struct {
	state   state
	isKey   bool   // the string is the key of a member
	digits  int    // missing from an escape like \u00e4
	literal string // the rest of true, false or null
	depth   int
	objects [maxDepth/bits.UintSize + 1]uint // a bit for each open bracket: 1 for an object
	offset  int                              // of the piece, for errors
}

// A state says what the scanner expects next.
type state uint8

const (
	atStart      state = iota // an object or an array
	atValue                   // a value
	atFirstValue              // a value, or the end of the array
	atKey                     // the key of a member
	atFirstKey                // the key of a member, or the end of the object
	atColon                   // the colon behind a key
	atNext                    // a comma, or the end of the object or array
	inString
	inEscape
	inDigits // of an escape like \u00e4
	inLiteral
	inMinus    // behind the minus of a number: a digit
	inZero     // behind a leading zero
	inInteger  // behind a digit of the integer
	inPoint    // behind the point: a digit
	inFraction // behind a digit of the fraction
	inE        // behind the e: a sign or a digit
	inSign     // behind the sign of the exponent: a digit
	inExponent // behind a digit of the exponent
	atEnd
)

// A syntaxError says why bytes are not JSON.
type syntaxError struct {
	offset int
	what   string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.what, e.offset) }

// scan reads the next piece. It returns how many of its bytes belong to the value, and whether the
// value is complete.
func (s *scanner) scan(b []byte) (n int, complete bool, err error) {
	for n < len(b) {
		if s.state == inString {
			for n < len(b) && b[n] != '"' && b[n] != '\\' && b[n] >= ' ' {
				n++
			}
			if n == len(b) {
				break
			}
		}
		if what := s.step(b[n]); what != "" {
			return n, false, &syntaxError{s.offset + n, what}
		}
		n++
		if s.state == atEnd {
			break
		}
	}
	s.offset += n
	return n, s.state == atEnd, nil
}

// step reads one byte. It returns what is wrong with it, or "".
func (s *scanner) step(c byte) (fault string) {
	switch s.state {
	case inString:
		return s.stepString(c)
	case inEscape:
		return s.stepEscape(c)
	case inDigits:
		return s.stepDigits(c)
	case inLiteral:
		return s.stepLiteral(c)
	case inMinus, inZero, inInteger, inPoint, inFraction, inE, inSign, inExponent:
		if next, ok := number(s.state, c); ok {
			s.state = next
			return ""
		}
		if s.state != inZero && s.state != inInteger && s.state != inFraction && s.state != inExponent {
			return fmt.Sprintf("a number is followed by %q", c)
		}
		s.state = atNext // c is the byte behind the number
	default:
	}
	if isSpace(c) {
		return ""
	}
	switch s.state {
	case atStart, atValue, atFirstValue:
		return s.beginValue(c)
	case atKey, atFirstKey:
		if c == '"' {
			s.state, s.isKey = inString, true
			return ""
		} else if c == '}' && s.state == atFirstKey {
			s.close()
			return ""
		}
		return fmt.Sprintf("%q stands where a key is expected", c)
	case atColon:
		if c != ':' {
			return fmt.Sprintf("a key is followed by %q", c)
		}
		s.state = atValue
		return ""
	default:
		return s.stepNext(c)
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// beginValue reads the first byte of a value.
func (s *scanner) beginValue(c byte) (fault string) {
	switch {
	case c == '{' || c == '[':
		if s.depth == maxDepth {
			return fmt.Sprintf("more than %d levels of nesting", maxDepth)
		}
		word, bit := s.depth/bits.UintSize, uint(1)<<(s.depth%bits.UintSize)
		s.objects[word] &^= bit
		s.state = atFirstValue
		if c == '{' {
			s.objects[word] |= bit
			s.state = atFirstKey
		}
		s.depth++
		return ""
	case s.state == atStart:
		return fmt.Sprintf("%q begins neither an object nor an array", c)
	case c == ']' && s.state == atFirstValue:
		s.close()
	case c == '"':
		s.state, s.isKey = inString, false
	case c == '-':
		s.state = inMinus
	case c == '0':
		s.state = inZero
	case c >= '1' && c <= '9':
		s.state = inInteger
	case c == 't':
		s.state, s.literal = inLiteral, "rue"
	case c == 'f':
		s.state, s.literal = inLiteral, "alse" //nolint:misspell // it is a part of a word
	case c == 'n':
		s.state, s.literal = inLiteral, "ull"
	default:
		return fmt.Sprintf("%q stands where a value is expected", c)
	}
	return ""
}

// inObject reports whether the innermost open bracket is that of an object.
func (s *scanner) inObject() bool {
	at := s.depth - 1
	return s.objects[at/bits.UintSize]>>(at%bits.UintSize)&1 == 1
}

// close ends the innermost object or array.
func (s *scanner) close() {
	s.state = atNext
	if s.depth--; s.depth == 0 {
		s.state = atEnd
	}
}

// stepNext reads the byte behind a value.
func (s *scanner) stepNext(c byte) (fault string) {
	object := s.inObject()
	switch {
	case c == ',' && object:
		s.state = atKey
	case c == ',':
		s.state = atValue
	case c == '}' && object, c == ']' && !object:
		s.close()
	default:
		return fmt.Sprintf("a value is followed by %q", c)
	}
	return ""
}

func (s *scanner) stepString(c byte) (fault string) {
	switch {
	case c == '\\':
		s.state = inEscape
	case c == '"' && s.isKey:
		s.state = atColon
	case c == '"':
		s.state = atNext
	case c < ' ':
		return fmt.Sprintf("a string contains the control character %q", c)
	}
	return ""
}

func (s *scanner) stepEscape(c byte) (fault string) {
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.state = inString
	case 'u':
		s.state, s.digits = inDigits, 4
	default:
		return fmt.Sprintf("a string contains a backslash and %q", c)
	}
	return ""
}

func (s *scanner) stepDigits(c byte) (fault string) {
	if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
		return fmt.Sprintf("%q stands where a hexadecimal digit is expected", c)
	}
	if s.digits--; s.digits == 0 {
		s.state = inString
	}
	return ""
}

func (s *scanner) stepLiteral(c byte) (fault string) {
	if c != s.literal[0] {
		return fmt.Sprintf("%q stands within true, false or null", c)
	}
	if s.literal = s.literal[1:]; s.literal == "" {
		s.state = atNext
	}
	return ""
}

// number returns the state behind a byte of a number. It returns false if c does not continue the
// number.
func number(at state, c byte) (next state, ok bool) {
	digit := c >= '0' && c <= '9'
	switch at {
	case inMinus:
		if c == '0' {
			return inZero, true
		}
		return inInteger, digit
	case inZero, inInteger:
		switch {
		case digit && at == inInteger:
			return inInteger, true
		case c == '.':
			return inPoint, true
		}
		return inE, c|0x20 == 'e'
	case inPoint:
		return inFraction, digit
	case inFraction:
		if digit {
			return inFraction, true
		}
		return inE, c|0x20 == 'e'
	case inE:
		if c == '+' || c == '-' {
			return inSign, true
		}
		return inExponent, digit
	default:
		return inExponent, digit
	}
}

// validate reports whether b is one JSON value, between spaces. It returns why not.
func validate(b []byte) error {
	s := new(scanner)
	n, complete, err := s.scan(b)
	switch {
	case err != nil && s.depth == 0 && json.Valid(b): // a value that is neither an object nor an array
		return nil
	case err != nil:
		return err
	case !complete:
		return &syntaxError{n, "it ends"}
	}
	for i, c := range b[n:] {
		if !isSpace(c) {
			return &syntaxError{n + i, fmt.Sprintf("the value is followed by %q", c)}
		}
	}
	return nil
}
