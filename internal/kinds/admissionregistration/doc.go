// Package admissionregistration is the group admissionregistration.k8s.io: configurations of webhooks, policies
// written in CEL, and their bindings. Package apiserver/webhooks acts on what is stored here. Whoever writes a policy
// must be allowed to read its parameters; the server hands in how that is found out.
package admissionregistration
