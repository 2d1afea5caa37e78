// Package rules has the validation that many kinds share, of names, numbers, quantities, selectors,
// addresses, and paths; and Rules, the validation of one kind.
package rules
