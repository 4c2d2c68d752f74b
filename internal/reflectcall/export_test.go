// SPDX-License-Identifier: Apache-2.0

package reflectcall

// Unmeant is for tests.
var Unmeant = unmeant
