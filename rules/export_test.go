// SPDX-License-Identifier: Apache-2.0

package rules

// Problems is the table of problems.
var Problems = problems
