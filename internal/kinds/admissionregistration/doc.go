// Package admissionregistration is the group admissionregistration.k8s.io: webhook configurations,
// policies in CEL, and their bindings. Package apiserver/webhooks applies the stored objects. The
// writer of a policy must be allowed to read its parameters; the server provides the check.
package admissionregistration
