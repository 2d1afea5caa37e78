// Package devices is the group resource.k8s.io, dynamic resource allocation: DeviceClasses, ResourceClaims and
// their templates, ResourceSlices and DeviceTaintRules. What a write needs to look at beside the object, the namespace
// and the rights of the user, is handed in (DeviceChecks).
package devices
