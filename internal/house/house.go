// SPDX-License-Identifier: Apache-2.0

// Package house holds the rules of the repository, each as a test: which package may import which,
// what every file and package has to have, how many names the root exports, and that the code and
// the links in the documents are real.
//
// Every rule is a function that returns faults in words. One test runs it over the repository,
// another shows that it catches a violation.
package house
