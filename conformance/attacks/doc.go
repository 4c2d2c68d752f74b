// SPDX-License-Identifier: Apache-2.0

// Package attacks runs attacks against a real server and bounds what they cost it.
//
// The server under attack, the victim, is a process of its own whose address space is limited, so
// that an attack that succeeds ends the victim and not the machine. A good client in another
// process makes 200 calls a second beside the attack. The test process is the attacker. It writes
// frames of its own making, or uses a yodel client.
//
// Each attack has four bounds:
//
//   - Held: the victim's live heap while the attacker keeps its connections, measured after a
//     garbage collection.
//   - Peak: the growth of the victim's resident memory, garbage included.
//   - CPU: the processor time that the victim spends on the whole attack, where the attack is one
//     on processor time.
//   - Latency: the 99th percentile of the good client's calls, at most three times that of a
//     control window measured just before, with a floor for the noise of the scheduler. No call of
//     the good client may fail.
//
// An attacker that shares the machine with the victim competes for its processors, and no server
// can prevent that. Attackers therefore spread what they send over most of the window, so that the
// result shows what the victim does with it.
//
//	go test -v -run TestAttacks ./conformance/attacks
package attacks
