// Package webhooks is admission that users add to a running API server: the plugins for the objects
// of admissionregistration.k8s.io (webhooks, and policies in CEL; package
// kinds/admissionregistration). The API server drives it: it puts the chain around the built-in
// plugins. Until the first such object exists, the plugins are not created, so a cluster without
// them pays nothing; nothing here may poll or start a goroutine before that.
package webhooks
