// Package webui is the page of `carob dashboard`: what the cluster runs, what waits and for what, and how model servers
// are used, live. It is a client: it watches the API with the rights of the user's kubeconfig, has no part in the
// engine, and runs only while the command does.
//
// Objects come from watches, the stages of pods from the timelines of the nodes (nodes/proxy), and the states of
// InferencePools from their gateways, once per second while a page shows them. state keeps them and makes rows, which
// are sent to the pages when they change: the first message has all rows, each later one those that changed since. A
// page that reads slowly gets fewer and newer rows, never a longer queue.
//
// The server listens on a loopback address. A page must send the secret of this process, which is in the fragment of
// the address that the command prints, with each request for data; the static files hold nothing. Requests for another
// host or from another origin are refused.
//
// Only package cli may import it; it may import core/explain and base.
package webui
