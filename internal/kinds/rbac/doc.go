// Package rbac is the group rbac.authorization.k8s.io: roles and their bindings. Package
// apiserver/auth authorizes by them, and prevents privilege escalation: users cannot grant
// permissions that they do not have.
package rbac
