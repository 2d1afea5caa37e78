// Package devices is the group resource.k8s.io, dynamic resource allocation: DeviceClasses,
// ResourceClaims and their templates, ResourceSlices, and DeviceTaintRules. DeviceChecks provides
// the data that a write needs besides the object: the namespace and the permissions of the user.
package devices
