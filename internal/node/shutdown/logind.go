package shutdown

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	loginService = "org.freedesktop.login1"
	loginPath    = dbus.ObjectPath("/org/freedesktop/login1")
	loginManager = "org.freedesktop.login1.Manager"
)

// logind calls systemd-logind over the system's D-Bus.
type logind struct {
	conn    *dbus.Conn
	object  dbus.BusObject
	signals chan *dbus.Signal
	confDir string
}

// confDir is the directory from which logind reads additional settings.
const confDir = "/etc/systemd/logind.conf.d"

// OpenLogin connects to the logind of this machine.
func OpenLogin(ctx context.Context) (Login, error) { return openLogin(ctx, confDir) }

func openLogin(ctx context.Context, confDir string) (*logind, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	l := &logind{conn: conn, object: conn.Object(loginService, loginPath), signals: make(chan *dbus.Signal, 8),
		confDir: confDir}
	// Subscribe before taking the lock, so that no signal is missed.
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchObjectPath(loginPath), dbus.WithMatchInterface(loginManager),
		dbus.WithMatchMember("PrepareForShutdown"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to logind: %w", err), conn.Close())
	}
	conn.Signal(l.signals)
	return l, nil
}

// property reads a property of logind.
func property[T any](ctx context.Context, l *logind, name string) (value T, _ error) {
	var v dbus.Variant
	err := l.object.CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, loginManager, name).Store(&v)
	if err != nil {
		return value, fmt.Errorf("read %s of logind: %w", name, err)
	}
	value, ok := v.Value().(T)
	if !ok {
		return value, fmt.Errorf("read %s of logind: the value is a %T", name, v.Value())
	}
	return value, nil
}

// Delay implements Login.
func (l *logind) Delay(ctx context.Context) (time.Duration, error) {
	us, err := property[uint64](ctx, l, "InhibitDelayMaxUSec")
	return time.Duration(us) * time.Microsecond, err
}

// Down implements Login.
func (l *logind) Down(ctx context.Context) (bool, error) {
	return property[bool](ctx, l, "PreparingForShutdown")
}

// extendTries and extendWait are how long logind may take to read its settings.
const (
	extendTries = 20
	extendWait  = 100 * time.Millisecond
)

// Extend implements Login: logind reads this setting only from a file.
func (l *logind) Extend(ctx context.Context, d time.Duration) error {
	if err := os.MkdirAll(l.confDir, 0o755); err != nil {
		return fmt.Errorf("have logind wait longer: %w", err)
	}
	text := fmt.Sprintf("# Written by carob for --shutdown-grace-period.\n[Login]\nInhibitDelayMaxSec=%d\n",
		int64((d+time.Second-1)/time.Second))
	if err := os.WriteFile(filepath.Join(l.confDir, "99-carob.conf"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("have logind wait longer: %w", err)
	}
	const hangup = int32(1)
	systemd := l.conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	if err := systemd.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service",
		"all", hangup).Err; err != nil {
		return fmt.Errorf("have logind read its settings again: %w", err)
	}
	for range extendTries {
		have, err := l.Delay(ctx)
		if err != nil || have >= d {
			return err
		}
		select {
		case <-time.After(extendWait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("logind does not wait for %s although %s says so", d, filepath.Join(l.confDir, "99-carob.conf"))
}

// Inhibit implements Login.
func (l *logind) Inhibit(ctx context.Context) (func() error, error) {
	var fd dbus.UnixFD
	err := l.object.CallWithContext(ctx, loginManager+".Inhibit", 0, "shutdown", "carob", "pods get their time to end",
		"delay").Store(&fd)
	if err != nil {
		return nil, fmt.Errorf("have logind delay a shutdown: %w", err)
	}
	return os.NewFile(uintptr(fd), "logind inhibitor").Close, nil
}

// Next implements Login.
func (l *logind) Next(ctx context.Context) (bool, error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case s, ok := <-l.signals:
			if !ok {
				return false, errors.New("the connection to logind was closed")
			}
			if s.Name != loginManager+".PrepareForShutdown" || len(s.Body) == 0 {
				continue
			}
			if down, ok := s.Body[0].(bool); ok {
				return down, nil
			}
		}
	}
}

// Close implements Login.
func (l *logind) Close() error { return l.conn.Close() }
