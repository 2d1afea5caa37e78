package native

import (
	"bufio"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// apparmorOf returns the AppArmor profile of a container; "" is unconfined. A profile that the
// container names must be loaded; the runtime's default is used if the host has it loaded.
func (r *Runtime) apparmorOf(sc *cri.LinuxContainerSecurityContext) (string, error) {
	p := sc.GetApparmor()
	if p == nil {
		p = apparmorProfile(sc.GetApparmorProfile())
	}
	if p.GetProfileType() == cri.SecurityProfile_Localhost {
		name := strings.TrimPrefix(p.LocalhostRef, "localhost/")
		if !r.host.apparmor {
			return "", status.Errorf(codes.FailedPrecondition, "apparmor is not supported on this host, profile %q",
				name)
		}
		if !profileLoaded(name) {
			return "", status.Errorf(codes.InvalidArgument, "apparmor profile not found %s", name)
		}
		return name, nil
	}
	if p.GetProfileType() == cri.SecurityProfile_Unconfined || !r.host.apparmor {
		return "", nil
	}
	if name := r.cfg.Name + "-default"; profileLoaded(name) || r.loadProfile(name) {
		return name, nil
	}
	return "", nil
}

// loadProfile loads the default profile with apparmor_parser. Without that program, containers run
// as on a host without AppArmor, like with other runtimes.
func (r *Runtime) loadProfile(name string) bool {
	err := apparmor.LoadDefaultProfile(name)
	if err != nil {
		r.apparmorWarning.Do(func() {
			klog.Background().Info("Containers run without an AppArmor profile", "profile", name, "reason", err.Error())
		})
	}
	return err == nil
}

// apparmorProfile parses the older form: runtime/default, unconfined, localhost/name.
func apparmorProfile(s string) *cri.SecurityProfile {
	switch {
	case s == "unconfined":
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	case strings.HasPrefix(s, "localhost/"):
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: s}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
}

func profileLoaded(name string) bool {
	f, err := os.Open("/sys/kernel/security/apparmor/profiles")
	if err != nil {
		return false
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if got, _, _ := strings.Cut(sc.Text(), " ("); got == name {
			return true
		}
	}
	return false
}
