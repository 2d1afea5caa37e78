package devices

import (
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Device selectors are compiled when they are written, by the rules in the API reference of
// CELDeviceSelector.
func TestDeviceExpressions(t *testing.T) {
	for expression, want := range map[string]string{
		`device.driver == "gpu.example.com"`:                                          "",
		`device.attributes["gpu.example.com"].?model.orValue("") == "a"`:              "",
		`device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0`:  "",
		`device.attributes["gpu.example.com"].version.isGreaterThan(semver("1.0.0"))`: "",
		`has(device.allowMultipleAllocations) && device.allowMultipleAllocations`:     "",
		``:                      "compilation failed",
		`device.driver ==`:      "Syntax error",
		`device.nothing == "a"`: "undefined field 'nothing'",
		`device.driver`:         "must evaluate to bool",
		`1 == 1 && "a" == 2`:    "no matching overload",
		`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, a+b+c+d+e+f > 0))))))`: "too complex, exceeds cost limit",
		`device.driver == "` + strings.Repeat("a", resourcev1.CELSelectorExpressionMaxLength) +
			`"`: "may not be more than 10240",
		strings.Repeat("(", 4000) + "true" +
			strings.Repeat(")", 4000): "compilation failed",
	} {
		selectors := []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "c"},
			Spec: resourcev1.DeviceClassSpec{Selectors: selectors}}
		exact := resourcev1.DeviceRequest{Name: "r",
			Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c",
				AllocationMode: resourcev1.DeviceAllocationModeAll, Selectors: selectors}}
		first := resourcev1.DeviceRequest{Name: "r",
			FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "s", DeviceClassName: "c",
				AllocationMode: resourcev1.DeviceAllocationModeAll, Selectors: selectors}}}
		for where, errs := range map[string]field.ErrorList{
			"spec.selectors[0].cel.expression": validateDeviceClass(class),
			"spec.devices.requests[0].exactly.selectors[0].cel.expression": validateResourceClaim(
				&resourcev1.ResourceClaim{
					Spec: resourcev1.ResourceClaimSpec{
						Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{exact}}}}),
			"spec.spec.devices.requests[0].firstAvailable[0].selectors[0].cel.expression": validateResourceClaimTemplate(&resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{first}}}}}),
		} {
			switch {
			case want == "" && len(errs) > 0:
				t.Errorf("%.80s at %s: %v", expression, where, errs)
			case want != "" && (len(errs) != 1 || errs[0].Field != where || !strings.Contains(errs[0].Error(), want)):
				t.Errorf("%.80s: %v, want %q at %s", expression, errs, want, where)
			}
		}
		if errs := checkDeviceClass(class, class.DeepCopy()); len(errs) > 0 {
			t.Errorf("%.80s is stored already: %v", expression, errs)
		}
	}
}
