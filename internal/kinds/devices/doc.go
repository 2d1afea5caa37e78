// Package devices is the group resource.k8s.io, dynamic resource allocation: DeviceClasses,
// ResourceClaims and their templates, ResourceSlices, and DeviceTaintRules. DeviceChecks provides
// what a write must read besides the object: the namespace and the permissions of the user.
package devices
