// SPDX-License-Identifier: Apache-2.0

package dialled

// What the tests call.
var (
	Complete = complete
	Silence  = silence
)
