// Package cniplugin is the CNI plugin `carob cni`: a container runtime calls it to connect a pod to carob's
// pod network. It passes the request on to the running carob and prints the result; it must never
// change anything on the host itself.
package cniplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"carob/internal/base/cniapi"
)

// Type is the name of the plugin's program, and its type in a configuration.
const Type = "carob-cni"

// Versions are those of the CNI specification that the plugin speaks.
var Versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// timeout of a request; a container runtime waits longer.
const timeout = 150 * time.Second

// config is what the container runtime sends on standard input.
type config struct {
	CNIVersion    string `json:"cniVersion"`
	Name          string `json:"name"`
	Socket        string `json:"socket"`
	RuntimeConfig struct {
		PortMappings []cniapi.PortMapping `json:"portMappings"`
		Bandwidth    cniapi.Bandwidth     `json:"bandwidth"`
	} `json:"runtimeConfig"`
	PrevResult json.RawMessage `json:"prevResult"`
}

// Run carries out what the environment says, and prints the result or the error to out. ok is false after
// an error, for the exit code.
func Run(ctx context.Context, env func(string) string, in io.Reader, out io.Writer) (ok bool) {
	version := "1.0.0"
	result, err := run(ctx, env, in, &version)
	if err != nil {
		result = struct {
			CNIVersion string `json:"cniVersion"`
			*cniapi.Error
		}{version, err}
	}
	if result != nil && json.NewEncoder(out).Encode(result) != nil {
		return false
	}
	return err == nil
}

// run returns what is printed, or nil. It sets version to that of the configuration as soon as it is known.
func run(ctx context.Context, env func(string) string, in io.Reader, version *string) (any, *cniapi.Error) {
	command := env("CNI_COMMAND")
	body, err := io.ReadAll(io.LimitReader(in, cniapi.MaxBytes+1))
	if err != nil {
		return nil, &cniapi.Error{Code: cniapi.CodeIO, Msg: "read the configuration", Details: err.Error()}
	}
	if len(body) > cniapi.MaxBytes {
		return nil, &cniapi.Error{Code: cniapi.CodeBadConfig,
			Msg: fmt.Sprintf("the configuration has more than %d bytes", cniapi.MaxBytes)}
	}
	var cfg config
	if err := json.Unmarshal(body, &cfg); err != nil {
		return nil, &cniapi.Error{Code: cniapi.CodeBadJSON, Msg: "read the configuration", Details: err.Error()}
	}
	if command == "VERSION" {
		return struct {
			CNIVersion        string   `json:"cniVersion"`
			SupportedVersions []string `json:"supportedVersions"`
		}{*version, Versions}, nil
	}
	if !slices.Contains(Versions, cfg.CNIVersion) {
		return nil, &cniapi.Error{Code: cniapi.CodeUnsupportedVersion,
			Msg: fmt.Sprintf("CNI version %.20q is not supported: use one of %s", cfg.CNIVersion, strings.Join(Versions, ", "))}
	}
	*version = cfg.CNIVersion
	r, failure := request(command, env, &cfg)
	if failure != nil {
		return nil, failure
	}
	if failure := r.Check(); failure != nil {
		return nil, failure
	}
	reply, failure := post(ctx, cfg.Socket, r)
	if failure != nil || command != "ADD" {
		return nil, failure
	}
	result, err := resultOf(reply, r, cfg.CNIVersion)
	if err != nil {
		return nil, &cniapi.Error{Code: cniapi.CodeFailed, Msg: "encode the result", Details: err.Error()}
	}
	return result, nil
}

// request puts a request together from the environment and the configuration.
func request(command string, env func(string) string, cfg *config) (*cniapi.Request, *cniapi.Error) {
	args, failure := cniapi.ParseArgs(env("CNI_ARGS"))
	if failure != nil {
		return nil, failure
	}
	r := &cniapi.Request{Command: command, Container: env("CNI_CONTAINERID"), NetNS: env("CNI_NETNS"),
		Device: env("CNI_IFNAME"), Args: args, Ports: cfg.RuntimeConfig.PortMappings,
		Bandwidth: cfg.RuntimeConfig.Bandwidth}
	if len(cfg.PrevResult) == 0 {
		return r, nil
	}
	if command == "ADD" {
		return nil, &cniapi.Error{Code: cniapi.CodeBadConfig,
			Msg: Type + " must be the first plugin of its list: it makes the pod's device"}
	}
	var before struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(cfg.PrevResult, &before); err != nil && command == "CHECK" {
		return nil, &cniapi.Error{Code: cniapi.CodeBadJSON, Msg: "read prevResult", Details: err.Error()}
	}
	for _, ip := range before.IPs {
		if command == "CHECK" && ip.Address.IsSingleIP() { // other plugins of the list may have added others
			r.IPs = append(r.IPs, ip.Address.Addr())
		}
	}
	return r, nil
}

// post sends a request to the running carob.
func post(ctx context.Context, socket string, r *cniapi.Request) (*cniapi.Reply, *cniapi.Error) {
	if !path.IsAbs(socket) || strings.ContainsRune(socket, 0) {
		return nil, &cniapi.Error{Code: cniapi.CodeBadConfig,
			Msg: fmt.Sprintf("the configuration's socket is %.80q, not the path of carob's socket", socket)}
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, &cniapi.Error{Code: cniapi.CodeFailed, Msg: "encode the request", Details: err.Error()}
	}
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://carob"+cniapi.Path, bytes.NewReader(body))
	if err != nil {
		return nil, &cniapi.Error{Code: cniapi.CodeFailed, Msg: "make the request", Details: err.Error()}
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, unanswered(r.Command, socket, err)
	}
	defer resp.Body.Close()
	var reply cniapi.Reply
	if err := json.NewDecoder(io.LimitReader(resp.Body, cniapi.MaxBytes)).Decode(&reply); err != nil {
		return nil, unanswered(r.Command, socket, err)
	}
	return &reply, reply.Error
}

// unanswered is the error about a carob that does not answer.
func unanswered(command, socket string, err error) *cniapi.Error {
	code := uint(cniapi.CodeTryAgain)
	if command == "STATUS" {
		code = cniapi.CodeNotAvailable
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return &cniapi.Error{Code: code, Msg: "carob is not running, or without --runtime-handler",
			Details: fmt.Sprintf("%s: %v", socket, op.Err)}
	}
	return &cniapi.Error{Code: code, Msg: "carob did not answer", Details: fmt.Sprintf("%s: %v", socket, err)}
}

// resultOf is the result of ADD in the form of a version.
func resultOf(reply *cniapi.Reply, r *cniapi.Request, version string) (types.Result, error) {
	device := 0
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{{Name: r.Device, Mac: reply.MAC, Sandbox: r.NetNS}}}
	for _, ip := range reply.IPs {
		c := &current.IPConfig{Interface: &device, Address: network(netip.PrefixFrom(ip, ip.BitLen()))}
		everywhere := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if ip.Is6() {
			everywhere = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		for _, gw := range reply.Gateways {
			if gw.Is4() == ip.Is4() {
				c.Gateway = gw.AsSlice()
				result.Routes = append(result.Routes, &types.Route{Dst: network(everywhere), GW: gw.AsSlice()})
			}
		}
		result.IPs = append(result.IPs, c)
	}
	return result.GetAsVersion(version)
}

func network(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
