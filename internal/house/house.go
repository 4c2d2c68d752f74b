// SPDX-License-Identifier: Apache-2.0

// Package house contains the rules of the repository, each as a test. They check which package may
// import which other package, what every file and package must contain, how many names the root
// package exports, and whether the code and the links in the documents are real.
//
// Every rule is a function that returns a description of each fault. One test runs the rule over
// the repository, and another test shows that it finds a violation.
package house
