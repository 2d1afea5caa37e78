// Package forward forwards TCP connections and UDP datagrams unchanged, and records what metrics and access log need of
// them. It chooses nothing: package gateway, which drives it, decides which endpoint gets what.
package forward
