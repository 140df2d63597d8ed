package runtime

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"klbr/internal/engine"
	"klbr/internal/klbr"
)

const (
	// silenceMax is how long turn() may run without a host call outstanding.
	silenceMax = 60 * time.Second
	// cancelGrace is how long a cancelled turn() may go on before its worker is
	// killed.
	cancelGrace = time.Second
)

// policySlot is the worker of one epoch.
type policySlot struct {
	epoch   int64
	release string
	ready   chan struct{} // closed when policy or err is set
	policy  Policy
	err     error

	mu    sync.Mutex // guards turns
	turns map[engine.Attempt]*turnRun
}

// turnRun is one run of turn().
type turnRun struct {
	upto atomic.Int64 // how far it has read the log
	done chan struct{}

	mu    sync.Mutex // guards below
	calls int        // host calls outstanding
	timer *time.Timer
}

// begin and end frame a host call: between two of them the policy thinks, and
// may not do so for long.
func (r *turnRun) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	r.timer.Stop()
}

func (r *turnRun) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls--; r.calls == 0 {
		r.timer.Reset(silenceMax)
	}
}

func (p *policySlot) dead() bool {
	select {
	case <-p.ready:
	default:
		return false
	}
	if p.err != nil {
		return true
	}
	select {
	case <-p.policy.Done():
		return true
	default:
		return false
	}
}

func (p *policySlot) run(a engine.Attempt) *turnRun {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.turns[a]
}

func (p *policySlot) attempts() []engine.Attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	var as []engine.Attempt
	for a := range p.turns {
		as = append(as, a)
	}
	return as
}

// worker is the live worker of an epoch, which is started where there is none.
// The loop calls it.
func (s *session) worker(epoch int64, release string) *policySlot {
	p := s.workers[epoch]
	if p != nil && p.release == release && !p.dead() {
		return p
	}
	p = &policySlot{epoch: epoch, release: release, ready: make(chan struct{}), turns: map[engine.Attempt]*turnRun{}}
	s.workers[epoch] = p
	s.spawn(func() {
		defer close(p.ready)
		p.policy, p.err = s.rt.opt.Workers.StartPolicy(s.ctx, PolicySpec{Session: s.name, Release: release},
			func(c HostCall) { s.host(p, c) })
	})
	return p
}

func (s *session) startTurn(t klbr.TurnRow) {
	p := s.worker(t.Epoch, t.Release)
	a := engine.Attempt{Turn: t.Turn, Attempt: t.Attempt}
	run := &turnRun{done: make(chan struct{})}
	run.upto.Store(t.After)
	fence := s.fence
	run.timer = time.AfterFunc(silenceMax, func() { s.silent(fence, p, a) })
	run.timer.Stop()
	p.mu.Lock()
	p.turns[a] = run
	p.mu.Unlock()
	workspace := s.state.Session.Workspace
	s.spawn(func() {
		ev := s.runTurn(p, run, t, workspace)
		run.mu.Lock()
		run.calls++ // no silence from here on
		run.timer.Stop()
		run.mu.Unlock()
		p.mu.Lock()
		delete(p.turns, a)
		p.mu.Unlock()
		close(run.done)
		faultPoint("after turn")
		s.post(fence, ev)
	})
}

func (s *session) runTurn(p *policySlot, run *turnRun, t klbr.TurnRow, workspace string) engine.Event {
	a := engine.Attempt{Turn: t.Turn, Attempt: t.Attempt}
	<-p.ready
	if p.err != nil {
		e := klbr.AsError(p.err)
		if e.Code != klbr.CodePolicyFailed { // Python itself does not start
			return engine.TurnReturned{Turn: t.Turn, Attempt: t.Attempt, Err: e}
		}
		return engine.WorkerDown{Attempts: []engine.Attempt{a}, Reason: "load", Error: e.Message, Blame: t.Turn}
	}
	shape, err := s.rt.opt.Models.Shape("llm")
	if err != nil {
		return engine.TurnReturned{Turn: t.Turn, Attempt: t.Attempt, Err: klbr.AsError(err)}
	}
	run.begin()
	run.end() // the silence counts from here
	err = p.policy.RunTurn(s.ctx, TurnParams{
		Turn: t.Turn, Attempt: t.Attempt, Lane: t.Lane, Session: s.name, Message: t.Message,
		After: t.After, Ledger: LedgerHead{t.BaseHead, t.BaseCount},
		ContextTokens: shape.ContextTokens, Tools: shape.Tools, MaxOutputTokens: shape.MaxOutputTokens,
		Workspace: workspace, Facts: s.rt.opt.Facts, Skills: []SkillLine{}, Budgets: s.rt.opt.Budgets, Started: t.Started,
	})
	select {
	case <-p.policy.Done():
		if err != nil {
			return engine.WorkerDown{Attempts: []engine.Attempt{a}, Reason: "exit", Error: p.policy.ExitReason()}
		}
	default:
	}
	ev := engine.TurnReturned{Turn: t.Turn, Attempt: t.Attempt}
	if err != nil {
		ev.Err = klbr.AsError(err)
	}
	return ev
}

// silent ends a worker whose turn() has run for too long without a host call.
func (s *session) silent(fence uint64, p *policySlot, a engine.Attempt) {
	s.post(fence, engine.WorkerDown{
		Attempts: p.attempts(), Reason: "silence", Blame: a.Turn,
		Error: "turn() ran for " + silenceMax.String() + " without a host call: slow work belongs into a cell",
	})
	p.policy.Kill()
}

func (s *session) cancelTurn(a engine.Attempt) {
	for _, p := range s.workers {
		run := p.run(a)
		if run == nil {
			continue
		}
		fence := s.fence
		s.spawn(func() {
			select {
			case <-p.ready:
			case <-s.ctx.Done():
				return
			}
			if p.policy == nil {
				return
			}
			p.policy.CancelTurn(a.Turn, a.Attempt)
			grace := time.NewTimer(cancelGrace)
			defer grace.Stop()
			select {
			case <-run.done:
			case <-s.ctx.Done():
			case <-grace.C:
				s.post(fence, engine.WorkerDown{
					Attempts: p.attempts(), Reason: "exit", Blame: a.Turn,
					Error: "the worker was killed because a cancelled turn did not end",
				})
				p.policy.Kill()
			}
		})
	}
}

// endWorker kills an epoch's worker.
func (s *session) endWorker(epoch int64) {
	p := s.workers[epoch]
	delete(s.workers, epoch)
	if p == nil {
		return
	}
	s.spawn(func() {
		<-p.ready
		if p.policy != nil {
			p.policy.Kill()
			<-p.policy.Done()
		}
	})
}

// endIdleWorkers ends the workers of epochs that are over once their last turn
// is.
func (s *session) endIdleWorkers() {
	if s.state == nil {
		return
	}
	for epoch, p := range s.workers {
		if epoch != s.state.Session.Epoch && len(p.attempts()) == 0 {
			s.endWorker(epoch)
		}
	}
}

// shutdown ends the session's processes and waits for its goroutines.
func (s *session) shutdown() {
	s.cancel()
	for epoch := range s.workers {
		s.endWorker(epoch)
	}
	if s.kernel != nil {
		s.kernel.end()
	}
	s.work.Wait()
}

// isStopped says whether err only tells that a call was given up.
func isStopped(err error) bool {
	return errors.Is(err, &klbr.Error{Code: klbr.CodeStopped}) || errors.Is(err, context.Canceled)
}
