// Package rbac is the group rbac.authorization.k8s.io: roles and their bindings. Package apiserver/auth decides by
// them, and adds that nobody gives rights away that they do not have.
package rbac
