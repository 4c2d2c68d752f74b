// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strconv"
	"time"
)

// Values is what a call of Kiss carries, in both directions.
type Values struct {
	Text   string
	Num, I int64
	D      float64
}

// Asked is what every client sends.
func Asked() Values { return Values{Text: "test hello client", Num: 1, I: 1, D: 0.1} }

// Answer is what the server makes of it.
func (v Values) Answer() Values {
	return Values{Text: v.Text + ":server response" + strconv.FormatInt(v.I, 10), Num: v.Num, I: v.I + 1, D: v.D + 0.2}
}

// CheckAnswer reports what is wrong with the answer to Asked.
func (v Values) CheckAnswer() error {
	if want := Asked().Answer(); v != want {
		return fmt.Errorf("the reply has %v instead of %v", v, want)
	}
	return nil
}

// Pause is how long the handler of Wait blocks.
const Pause = time.Millisecond

// Body returns random bytes for an Echo, a Stream or a Duplex.
func Body(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.Read(b) // It never fails.
	return b
}

// CheckBody reports whether other bytes have come back than were sent.
func CheckBody(got, sent []byte) error {
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("the %d bytes that have come back are not the %d bytes sent", len(got), len(sent))
	}
	return nil
}
