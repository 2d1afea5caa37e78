// Package rules are the checks that many kinds share, of names, numbers, quantities, selectors, addresses and paths,
// and Rules, the set of checks of one kind.
//
// Every check is a pure function of the object (on update, of the new and the stored one) to a list of errors with the
// paths and messages that kubectl's users know. The strategies call them after defaulting and mutating admission. A
// check
// never changes an object, never looks at other objects, and reads no clock.
package rules
