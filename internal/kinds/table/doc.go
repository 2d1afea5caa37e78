// Package table builds the tables that kubectl prints from descriptions of columns. A row is a pure
// function of the object and the time.
package table
