// SPDX-License-Identifier: Apache-2.0

// Package criticality has the classes of calls: which are carried out when not all can be. They are
// values of yodel.Call.Criticality; those who limit calls refuse the lower ones first.
//
// The classes are those of Google's Site Reliability Engineering, chapter 21, Handling Overload.
package criticality

// The classes. Values in between are possible.
const (
	Critical  = 1  // a person waits, and will notice
	Normal    = 0  // what is not said to be another
	Sheddable = -1 // it may fail now and then: somebody will try again
	Batch     = -2 // nobody waits; it may be refused for minutes
)
