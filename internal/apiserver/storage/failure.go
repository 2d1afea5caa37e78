package storage

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// failure keeps etcd's first fatal error. etcd reports a lost disk or damaged data by logging at
// level Fatal, which exits the process, or Panic; its logger here ends the goroutine instead and
// leaves the decision to those who wait on done.
type failure struct {
	mu   sync.Mutex
	err  error
	done chan struct{}
}

func newFailure() *failure { return &failure{done: make(chan struct{})} }

func (f *failure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *failure) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
		close(f.done)
	}
}

// logger drops everything except the messages that end etcd.
func (f *failure) logger() *zap.Logger {
	return zap.New(zapcore.NewNopCore(), zap.WithFatalHook(f), zap.WithPanicHook(f))
}

// OnWrite implements zapcore.CheckWriteHook for a fatal or panic message.
func (f *failure) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
			break
		}
	}
	f.set(err)
	runtime.Goexit()
}
