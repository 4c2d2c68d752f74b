// SPDX-License-Identifier: Apache-2.0

package yodel

// Attempts is a view of a Call that controls how a client sends it. It is for middleware that sends
// a call several times, and for pickers. Call.Attempts returns it. An Attempts has no state of its
// own.
//
//   - To send a call again: MayRepeat, NoRepeat and Take.
//   - To choose endpoints: Avoids, Avoid, AllowUnready and Pin.
//   - To make attempts at the same time: Forkable, Fork and Join.
//   - To make a call that may continue after this one has ended: Detach and Release.
//   - To replace a call by a new one: Resume.
//
// Like its Call, it belongs to one goroutine at a time.
type Attempts Call

// Attempts returns the methods that control how a client sends c. The result is valid as long as c.
func (c *Call) Attempts() *Attempts { return (*Attempts)(c) }
