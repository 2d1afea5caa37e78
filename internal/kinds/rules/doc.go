// Package rules has the validation that many kinds share, of names, numbers, quantities, selectors,
// addresses, and paths; and Rules, the validation of one kind.
//
// Each is a pure function from the object (on update, from the new and the stored one) to a list of
// errors with upstream's paths and messages. The strategies call them after defaulting and mutating
// admission. They never change an object, never read other objects, and read no clock.
package rules
