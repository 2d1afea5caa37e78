// Package remotedisk makes disks of other machines block devices of this node, and removes them again: LUNs of iSCSI
// targets, by iscsiadm(8), and of Fibre Channel. The volume manager drives it, and mounts the devices. Its state is a
// file for each disk of a pod, which is written before the disk is attached and removed after it is detached.
//
// The strings of volumes are hostile: a Disk passes Check before any of them becomes an argument or part of a path.
//
// Contract: S4.92 in docs/spec/storage-and-node.md.
package remotedisk

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Disk identifies a disk; one of its fields is set. It is stored.
type Disk struct {
	ISCSI *ISCSI `json:"iscsi,omitempty"`
	FC    *FC    `json:"fc,omitempty"`
}

// ISCSI is a LUN of a target.
type ISCSI struct {
	Portals   []string `json:"portals"` // HOST:PORT, the first one for discovery by default
	Target    string   `json:"target"`  // IQN, EUI, or NAA
	LUN       int32    `json:"lun"`
	Interface string   `json:"interface"`           // of iscsiadm
	Initiator string   `json:"initiator,omitempty"` // name of an interface made for this volume; empty: the machine's
	Volume    string   `json:"volume"`              // part of that interface's name
}

// FC is a LUN behind ports of Fibre Channel, or a disk by its world wide identifiers.
type FC struct {
	WWNs  []string `json:"wwns,omitempty"`
	LUN   int32    `json:"lun"`
	WWIDs []string `json:"wwids,omitempty"`
}

// Secrets are the credentials of CHAP by the name of the setting of iscsiadm. They are not stored.
type Secrets struct {
	Discovery, Session bool // CHAP is used for it
	Values             map[string][]byte
}

// Of returns the disk of a volume's source; false: it has none. Volume names the volume.
func Of(iscsi *corev1.ISCSIPersistentVolumeSource, fc *corev1.FCVolumeSource, volume string) (Disk, bool) {
	switch {
	case iscsi != nil:
		d := &ISCSI{Target: iscsi.IQN, LUN: iscsi.Lun, Interface: iscsi.ISCSIInterface, Volume: volume}
		for _, p := range append([]string{iscsi.TargetPortal}, iscsi.Portals...) {
			if p = portal(p); !slices.Contains(d.Portals, p) {
				d.Portals = append(d.Portals, p)
			}
		}
		if d.Interface == "" {
			d.Interface = "default"
		}
		if iscsi.InitiatorName != nil {
			d.Initiator = *iscsi.InitiatorName
		}
		return Disk{ISCSI: d}, true
	case fc != nil:
		d := &FC{}
		for _, w := range fc.TargetWWNs {
			d.WWNs = append(d.WWNs, strings.ToLower(w))
		}
		if fc.Lun != nil {
			d.LUN = *fc.Lun
		}
		for _, w := range fc.WWIDs { // as udev spells them
			d.WWIDs = append(d.WWIDs, strings.ReplaceAll(w, " ", "_"))
		}
		return Disk{FC: d}, true
	}
	return Disk{}, false
}

// Inline is the source of an iSCSI volume of a pod in the form of a persistent volume.
func Inline(v *corev1.ISCSIVolumeSource, namespace string) *corev1.ISCSIPersistentVolumeSource {
	p := &corev1.ISCSIPersistentVolumeSource{TargetPortal: v.TargetPortal, IQN: v.IQN, Lun: v.Lun,
		ISCSIInterface: v.ISCSIInterface, FSType: v.FSType, ReadOnly: v.ReadOnly, Portals: v.Portals,
		DiscoveryCHAPAuth: v.DiscoveryCHAPAuth, SessionCHAPAuth: v.SessionCHAPAuth, InitiatorName: v.InitiatorName}
	if v.SecretRef != nil {
		p.SecretRef = &corev1.SecretReference{Namespace: namespace, Name: v.SecretRef.Name}
	}
	return p
}

const defaultPort = "3260"

// portal completes a portal with the port of iSCSI.
func portal(p string) string {
	if a, err := netip.ParseAddr(strings.Trim(p, "[]")); err == nil {
		return net.JoinHostPort(a.String(), defaultPort)
	}
	if !strings.Contains(p, ":") {
		return p + ":" + defaultPort
	}
	return p
}

var (
	// RFC 3720: the characters are those of RFC 3722 and some that targets use beside them. None is special in a path,
	// for glob, or for iscsiadm.
	targetName = regexp.MustCompile(`^(iqn\.[0-9]{4}-[0-9]{2}\.[A-Za-z0-9.-]{1,100}(:[A-Za-z0-9._:+@=-]{1,128})?|` +
		`eui\.[0-9A-Fa-f]{16}|naa\.([0-9A-Fa-f]{16}|[0-9A-Fa-f]{32}))$`)
	hostName    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)
	interfaceOf = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
	wwn         = regexp.MustCompile(`^[0-9a-f]{1,32}$`)
	wwid        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:+-]{0,127}$`)
)

// maxIDs limits the portals, WWNs, and WWIDs of one disk.
const maxIDs = 64

// Check returns why the disk cannot be used.
func (d *Disk) Check() error {
	switch {
	case d.ISCSI != nil:
		return d.ISCSI.check()
	case d.FC != nil:
		return d.FC.check()
	}
	return errors.New("no disk is named")
}

func (d *ISCSI) check() error {
	if len(d.Portals) == 0 || len(d.Portals) > maxIDs {
		return fmt.Errorf("an iSCSI volume must have 1 to %d portals", maxIDs)
	}
	for _, p := range d.Portals {
		host, port, err := net.SplitHostPort(p)
		n, perr := strconv.ParseUint(port, 10, 16)
		a, aerr := netip.ParseAddr(host)
		if err != nil || perr != nil || n == 0 || port[0] == '0' ||
			!(aerr == nil && a.Zone() == "") && !hostName.MatchString(host) {
			return fmt.Errorf("invalid iSCSI portal %.300q", p)
		}
	}
	if !targetName.MatchString(d.Target) {
		return fmt.Errorf("invalid name of an iSCSI target %.300q", d.Target)
	}
	if d.Initiator != "" && !targetName.MatchString(d.Initiator) {
		return fmt.Errorf("invalid name of an iSCSI initiator %.300q", d.Initiator)
	}
	if !interfaceOf.MatchString(d.Interface) || strings.Contains(d.Interface, "..") {
		return fmt.Errorf("invalid iSCSI interface %.300q", d.Interface)
	}
	if d.Initiator != "" && !interfaceOf.MatchString(d.Volume) {
		return fmt.Errorf("invalid name of a volume %.300q", d.Volume)
	}
	return checkLUN(d.LUN)
}

func (d *FC) check() error {
	if len(d.WWNs)+len(d.WWIDs) == 0 || len(d.WWNs)+len(d.WWIDs) > maxIDs {
		return fmt.Errorf("a Fibre Channel volume must have 1 to %d targetWWNs or wwids", maxIDs)
	}
	for _, w := range d.WWNs {
		if !wwn.MatchString(w) {
			return fmt.Errorf("invalid WWN %.300q", w)
		}
	}
	for _, w := range d.WWIDs {
		if !wwid.MatchString(w) {
			return fmt.Errorf("invalid WWID %.300q", w)
		}
	}
	return checkLUN(d.LUN)
}

func checkLUN(lun int32) error {
	if lun < 0 || lun > 255 {
		return fmt.Errorf("invalid LUN %d: it must be between 0 and 255", lun)
	}
	return nil
}

// iface is the interface of iscsiadm that the sessions use.
func (d *ISCSI) iface() string {
	if d.Initiator == "" {
		return d.Interface
	}
	return strings.NewReplacer("[", "", "]", "").Replace(d.Portals[0]) + ":" + d.Volume
}

// key names what one process at a time attaches and detaches.
func (d *Disk) key() string {
	if d.ISCSI != nil {
		return "iscsi " + d.ISCSI.Target
	}
	return "fc " + strings.Join(d.FC.WWNs, " ") + "/" + strings.Join(d.FC.WWIDs, " ")
}

// same reports whether two records are of one disk.
func (d *Disk) same(o *Disk) bool {
	if d.ISCSI != nil {
		return o.ISCSI != nil && o.ISCSI.Target == d.ISCSI.Target && o.ISCSI.LUN == d.ISCSI.LUN
	}
	return o.FC != nil && o.FC.LUN == d.FC.LUN && d.key() == o.key()
}

// chap are the settings that a secret may have, for discovery and for sessions.
var (
	chapDiscovery = []string{"discovery.sendtargets.auth.username", "discovery.sendtargets.auth.password",
		"discovery.sendtargets.auth.username_in", "discovery.sendtargets.auth.password_in"}
	chapSession = []string{"node.session.auth.username", "node.session.auth.password",
		"node.session.auth.username_in", "node.session.auth.password_in"}
)

// check refuses values that the files of iscsiadm cannot hold as one line.
func (s *Secrets) check() error {
	if !s.Discovery && !s.Session {
		return nil
	}
	for _, name := range slices.Concat(chapDiscovery, chapSession) {
		v := s.Values[name]
		if len(v) > 255 || slices.ContainsFunc(v, func(b byte) bool { return b < ' ' || b == 0x7f }) {
			return fmt.Errorf("the secret's value of %s cannot be used: at most 255 characters in one line", name)
		}
	}
	return nil
}
