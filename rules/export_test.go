// SPDX-License-Identifier: Apache-2.0

package rules

// RolledBack is the change that a process makes when a Rollback condition is broken.
var RolledBack = (*Book).rolledBack

// Problems is the table of problems.
var Problems = problems
