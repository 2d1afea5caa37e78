// Package forward passes TCP connections and datagrams of UDP on as they are, and keeps what is to be told of them. It
// chooses nothing: package gateway, which drives it, decides which endpoint gets what.
package forward
